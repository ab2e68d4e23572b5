"""Suite: which environments, splits, tasks, seeds and attempts an evaluation plays, read from a TOML file.

name = "mine"
description = "One environment, three attempts at each task."
attempts = 3
metrics = ["success", "score", "pass@3", "pass^3", "turns"]

[[env]]
name = "keydoor"                    # an id, "package.module:Class" or a URL
split = "test"
tasks = 20                          # the first 20; or a list of indices
"""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agentgym.errors import ConfigError
from agentgym.registry import is_url
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits
from agentgym.spec import EnvSpec

HUB = "hf:"
"""Prefix of files of the Hugging Face hub in arguments of environments."""
SHIPPED = Path(__file__).with_name("suites")

ABOUT = frozenset({"description", "source", "licence", "download", "metric", "status", "published", "metrics"})
"""Fields of a suite that change nothing of what is played."""
PLAIN_METRICS = ("success", "score", "turns", "invalid", "truncated")
METRIC_AT_K = re.compile(r"pass([@^])([1-9][0-9]*)")

Index = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(gt=0)]


class SuiteEnv(BaseModel):
    """One environment of a suite: an entry [[env]]."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    """An id, "package.module:Class", or a URL."""
    split: str = "test"
    tasks: Count | tuple[Index, ...]
    """A number n: tasks 0 to n-1 of the split. A list: those."""
    attempts: Count | None = None
    """Overrides the suite's."""
    seeds: tuple[Index, ...] | None = Field(default=None, min_length=1)
    """Overrides the suite's."""
    max_turns: Count | None = None
    """Cuts every episode after so many turns; None leaves it to the run and the environment."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Constructor arguments of an environment that runs in this process; not for URLs."""
    prompt_format: dict[str, Any] = Field(default_factory=dict)
    """Fields that differ from the run's prompt format."""

    @field_validator("prompt_format")
    @classmethod
    def _prompt_format(cls, override: dict[str, Any]) -> dict[str, Any]:
        PromptFormat.model_validate(override)
        return override

    @model_validator(mode="after")
    def _fits(self) -> SuiteEnv:
        if self.kwargs and is_url(self.name):
            raise ValueError("kwargs are for environments that run in this process; a server has built its own")
        if isinstance(self.tasks, tuple) and (not self.tasks or len(set(self.tasks)) < len(self.tasks)):
            raise ValueError(f"tasks must name at least one task and none twice, not {list(self.tasks)}")
        if self.seeds and len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must differ, not {list(self.seeds)}")
        return self

    @property
    def indices(self) -> tuple[int, ...]:
        """The tasks, in increasing order."""
        return tuple(range(self.tasks)) if isinstance(self.tasks, int) else tuple(sorted(self.tasks))

    def prompt_format_over(self, base: PromptFormat) -> PromptFormat:
        """The run's prompt format with this environment's differences."""
        return PromptFormat.model_validate({**base.model_dump(), **self.prompt_format})

    def limits_over(self, base: Limits) -> Limits:
        """The run's limits with this environment's."""
        return base if self.max_turns is None else Limits(max_turns=self.max_turns, episode_s=base.episode_s)

    def check(self, spec: EnvSpec) -> None:
        """Raises ConfigError when the environment has no such split or tasks."""
        if self.split not in spec.splits:
            raise ConfigError(f"{self.name} has no split {self.split!r}; it has {', '.join(spec.splits)}")
        if (last := self.indices[-1]) >= (there := spec.splits[self.split]):
            raise ConfigError(f"{self.name} has {there} tasks in {self.split!r}, so there is no task {last}")


class PublishedScore(BaseModel):
    """A score that others have published for the same tasks and metric."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    system: str = Field(min_length=1)
    score: float = Field(ge=0, le=100)
    """Share in per cent."""
    source: str = Field(min_length=1)
    """Paper or page."""
    note: str = ""
    """Differences from how the suite is played: examples in the prompt, several samples."""


class Suite(BaseModel):
    """A benchmark: environments, attempts, seeds, and the metrics that its table shows."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    name: str = Field(min_length=1)
    description: str = ""
    source: str = ""
    """Page of a benchmark that others publish; "" for one of ours."""
    licence: str = ""
    """Licence of the data."""
    download: str = ""
    """Command that gets the data, where it is not on the Hugging Face hub."""
    metric: str = ""
    """Figure that is published of it, in words."""
    status: Literal["", "run", "format-tested"] = ""
    """Says of a benchmark that others publish whether its own tasks have been played with this code, or files in its
    format only."""
    published: tuple[PublishedScore, ...] = ()
    attempts: Count = 1
    """Times every (task, seed) is tried; each draws from a random stream of its own."""
    seeds: tuple[Index, ...] = Field(default=(0,), min_length=1)
    """Seeds of the environments. Every task is played with each."""
    metrics: tuple[str, ...] = ("success", "score", "turns", "invalid", "truncated")
    """Columns of the table: "success", "score", "turns", "invalid", "truncated", "pass@k" and "pass^k" for a number k.

    pass@k: a task is solved by at least one of k attempts. pass^k: by all k. Both unbiased from n >= k attempts.
    """
    envs: tuple[SuiteEnv, ...] = Field(alias="env", min_length=1)

    @field_validator("metrics")
    @classmethod
    def _known(cls, metrics: tuple[str, ...]) -> tuple[str, ...]:
        for metric in metrics:
            if metric not in PLAIN_METRICS and not METRIC_AT_K.fullmatch(metric):
                raise ValueError(f"no metric {metric!r}; there are {', '.join(PLAIN_METRICS)}, pass@k and pass^k")
        return metrics

    @model_validator(mode="after")
    def _fits(self) -> Suite:
        most = max(env.attempts or self.attempts for env in self.envs)
        for metric in self.metrics:
            if (at := METRIC_AT_K.fullmatch(metric)) and int(at[2]) > most:
                raise ValueError(f"{metric} needs {at[2]} attempts at a task, and no environment has more than {most}")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must differ, not {list(self.seeds)}")
        places = [(env.name, env.split) for env in self.envs]
        for name, split in places:
            if places.count((name, split)) > 1:
                raise ValueError(f"{name} {split!r} is listed twice; list its tasks in one entry")
        return self

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files that its environments read, where they are not ours."""
        return self._arguments(HUB)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Folders and programs of the user's that its environments use: `download` makes them."""
        return tuple(Path(text).expanduser() for text in self._arguments("~/"))

    def _arguments(self, prefix: str) -> tuple[str, ...]:
        texts = [value for env in self.envs for value in env.kwargs.values() if isinstance(value, str)]
        return tuple(dict.fromkeys(text for text in texts if text.startswith(prefix)))

    def episodes(self, env: SuiteEnv) -> list[EpisodeSpec]:
        """Every episode of one of its environments, by task, seed and attempt."""
        attempts = range(env.attempts or self.attempts)
        return [
            EpisodeSpec(env.name, env.split, task, seed, attempt)
            for task in env.indices
            for seed in sorted(env.seeds or self.seeds)
            for attempt in attempts
        ]


def shipped_suites() -> tuple[str, ...]:
    """Names of the suites that come with AgentGym."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def load_suite(name_or_path: str | Path) -> Suite:
    """A shipped suite by name, or one of your own by the path of its TOML file. Raises ConfigError."""
    named = str(name_or_path)
    is_path = isinstance(name_or_path, Path) or named.endswith(".toml") or "/" in named
    path = Path(named) if is_path else SHIPPED / f"{named}.toml"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        there = shipped_suites()
        close = difflib.get_close_matches(named, there, n=1)
        guess = f" Did you mean {close[0]}?" if close else ""
        what = f"{path} cannot be read ({error})" if is_path else f"no suite is called {named!r}"
        raise ConfigError(
            f"{what}.{guess} Shipped suites: {', '.join(there)}; one of your own is named by its .toml file's path"
        ) from error
    try:
        return Suite.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"{path} is not a suite: {_problems(error)}") from error


PROBLEMS = {"extra_forbidden": "there is no such key", "missing": "it is missing"}
"""Messages for a wrong field, where pydantic's own words do not suit a file."""


def _problems(error: ValidationError) -> str:
    """Every wrong field and why: [[env]] number 2, taks: there is no such key; ..."""
    problems = error.errors()
    places = [problem["loc"] for problem in problems]
    reasons: dict[str, list[str]] = {}
    for place, problem in zip(places, problems):
        if any(other != place and other[: len(place)] == place for other in places):
            continue  # follows from what is wrong inside it
        reason = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
        reasons.setdefault(_place(place), []).append(PROBLEMS.get(problem["type"], reason))
    return "; ".join(f"{where}: {', or '.join(dict.fromkeys(why))}" for where, why in reasons.items())


def _place(location: tuple[int | str, ...]) -> str:
    """A field as a reader of the file finds it; pydantic's names of a union's members are left out."""
    names = [str(part) for part in location if isinstance(part, int) or part.isidentifier()]
    if names[:1] == ["env"] and len(names) > 1:
        names = [f"[[env]] number {int(names[1]) + 1}", *names[2:]]
    elif names == ["env"]:
        return "[[env]]"
    return ", ".join(names) or "the file"
