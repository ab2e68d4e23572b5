"""The source protocol: where a step's episodes come from, and what of the trainer a source may use."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from agentgym.rollouts.runner import Runner
from agentgym.rollouts.trajectory import Group
from agentgym.spec import EnvSpec
from agentgym_trainers.engines.base import Engine
from agentgym_trainers.rollout.policy import TokenPolicy
from agentgym_trainers.rollout.tasks import UniformTasks


class Collector(Protocol):
    """The part of the trainer that sources play with."""

    config: Any
    """The run's `Config`, scheduled options as they are in this step."""
    folder: Path
    spec: EnvSpec
    runner: Runner
    learner: Any
    engine: Engine
    tokenizer: Any
    curriculum: UniformTasks
    step: int

    def policy(self, *salt: int) -> TokenPolicy: ...

    async def play(self, tasks: Sequence[tuple[int, int]]) -> list[Group]: ...


class Source(Protocol):
    async def collect(self, trainer: Collector, groups: int) -> list[Group]:
        """`groups` groups of attempts for the present step."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class SourceKind:
    options: type[BaseModel]
    build: Callable[[Any], Source]
    needs: Callable[[Any], frozenset[str]] = lambda options: frozenset()
    """Capabilities that the world must have ("expert", "two_player"), by the options."""

    @property
    def description(self) -> str:
        return (inspect.getdoc(self.options) or "").partition("\n")[0]
