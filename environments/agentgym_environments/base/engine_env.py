"""Base of environments around another's engine: a package that may be missing, and snapshots by playing again."""

from __future__ import annotations

import importlib
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from agentgym.env import Action, Observation
from agentgym.errors import BadRequest, ConfigError, MissingDependency
from agentgym_environments.base.text_env import Outcome, TurnEnv

TEXTWORLD = threading.RLock()
"""TextWorld's parser, which ALFWorld uses too, has one state for the whole process: environments in threads take
turns."""


COMPILED = ("alfworld", "reasoning-gym", "textworld")
"""Extras that compile a library when they are installed."""


def package(module: str, extra: str) -> Any:
    """The module, imported now. Raises MissingDependency with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        install = f"pip install 'turngym[{extra}]'"
        if extra in COMPILED:
            install = f"apt-get install cmake g++ make python3-dev, then {install}"
        raise MissingDependency(
            f"this environment needs the package {missing!r}, which is not installed: {install}"
        ) from error


def require_flag(env: str, name: str, value: Any) -> None:
    """Raises ConfigError when an argument is neither true nor false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{env}: {name} is true or false, not {value!r}")


def require_int(env: str, name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raises ConfigError when an argument is no whole number between `least` and `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        within = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{env}: {name} is a whole number {within}, not {value!r}")


class EngineEnv(TurnEnv):
    """A TurnEnv whose rules are an engine's, which cannot be written down. Implement `open` and `apply` in place of
    `begin` and `act`; all chance must be the task's.

    A snapshot is the task and the actions taken, which `restore` plays again.
    """

    verbatim: ClassVar[bool] = False
    """`apply` is given the action as it was said, with capitals and line breaks, only the spaces around it cut off."""

    alone: ClassVar[AbstractContextManager[Any]] = nullcontext()
    """Held while the engine works, for one that bears no second environment of its process at the same time."""

    def open(self, split: str, task: int) -> None:
        raise NotImplementedError

    def apply(self, action: str) -> Outcome | None:
        raise NotImplementedError

    def begin(self, split: str, task: int) -> None:
        self._opening: tuple[str, int] = (split, task)
        self._taken: list[str] = []
        self._action = ""
        self.open(split, task)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        with self.alone:
            return super().reset(seed=seed, options=options)

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._action = action.strip() if isinstance(action, str) else ""
        with self.alone:
            return super().step(action)

    def restore(self, state: bytes) -> None:
        with self.alone:
            super().restore(state)

    def readings(self, action: Action) -> tuple[str, ...]:
        texts = super().readings(action)
        return texts[:1] if self.verbatim else texts

    def act(self, action: str) -> Outcome | None:
        action = self._action if self.verbatim else action
        outcome = self.apply(action)
        if outcome is not None:
            self._taken.append(action)
        return outcome

    def refuse(self, action: str) -> str:
        legal = self.describe().get("available_actions") or self.env_spec.actions
        return f"not an action; say {', '.join(legal)}\n{self.observe()}"

    def save(self) -> Any:
        return {"opening": self._opening, "actions": self._taken, "key": self.key()}

    def load(self, state: Any) -> None:
        split, task = state["opening"]
        self.begin(*self.select_task({"split": split, "task": task}))
        for action in state["actions"]:
            self._action = action
            self.act(action)
        if self.key() != state["key"]:
            raise BadRequest(
                f"this snapshot of {self.env_spec.id} comes out otherwise when it is played again: it is of an "
                "environment with other arguments, or of another version of its package"
            )
