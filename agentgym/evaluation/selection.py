"""SuiteSelection: the part of a suite that an evaluation plays."""

from __future__ import annotations

import difflib

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentgym.errors import UsageError
from agentgym.evaluation.suite import Suite, SuiteEnv


class SuiteSelection(BaseModel):
    """Some environments of a suite, and some tasks of each. Without fields: the whole suite."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    envs: tuple[str, ...] = ()
    """Names of environments, with or without their options. None: all."""
    limit: int | None = Field(default=None, gt=0)
    """Number of tasks of each environment and split: the first ones. None: all."""
    shuffle: int | None = Field(default=None, ge=0)
    """Seed that draws the `limit` tasks instead. A greater limit draws those and more."""

    @model_validator(mode="after")
    def _fits(self) -> SuiteSelection:
        if self.shuffle is not None and self.limit is None:
            raise ValueError("shuffle draws the tasks of a limit: give both")
        return self

    def of(self, suite: Suite) -> Suite:
        """Return that part of a suite as a suite. Raises UsageError for an environment that it does not have."""
        if self == SuiteSelection():
            return suite
        for name in self.envs:
            names = [env.name for env in suite.envs]
            if not any(_is(env, name) for env in suite.envs):
                close = difflib.get_close_matches(name, names, n=1)
                guess = f" Did you mean {close[0]}?" if close else ""
                raise UsageError(f"{suite.name} has no environment {name!r}.{guess} It has {', '.join(names)}")
        envs = [env for env in suite.envs if not self.envs or any(_is(env, name) for name in self.envs)]
        return suite.model_copy(update={"envs": tuple(self._fewer(env) for env in envs)})

    def covers(self, other: SuiteSelection, suite: Suite) -> bool:
        """Return whether every episode of the other selection is one of this."""
        there, here = (
            {episode for env in selection.of(suite).envs for episode in suite.episodes(env)}
            for selection in (other, self)
        )
        return there <= here

    def _fewer(self, env: SuiteEnv) -> SuiteEnv:
        if self.limit is None:
            return env
        tasks = list(env.indices)
        if self.shuffle is not None:
            rng = np.random.default_rng([self.shuffle, *f"{env.name}/{env.split}".encode()])
            tasks = [tasks[i] for i in rng.permutation(len(tasks))]
        return env.model_copy(update={"tasks": tuple(sorted(tasks[: self.limit]))})

    def __str__(self) -> str:
        names = ", ".join(self.envs) or "every environment"
        if self.limit is None:
            return f"all tasks of {names}"
        return f"{self.limit} tasks of {names}" + (f", drawn with seed {self.shuffle}" * (self.shuffle is not None))


def _is(env: SuiteEnv, name: str) -> bool:
    return env.name == name or env.name.startswith(f"{name}:")
