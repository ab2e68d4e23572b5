"""The source protocol: where a step's episodes come from, and what of the trainer a source may use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentgym.rollouts.runner import Runner
from agentgym.rollouts.trajectory import Group
from agentgym.spec import EnvSpec
from agentgym_trainers.config.registry import ClassPart
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

    async def rollout_groups(self, tasks: Sequence[tuple[int, int]]) -> list[Group]: ...


class Source:
    """Source of a step's episodes. A source overrides `collect`, and the rest where it keeps something."""

    concurrent = False
    """True where episodes are played while a step learns: it then learns in a thread of its own."""

    async def collect(self, trainer: Collector, groups: int) -> list[Group]:
        """`groups` groups of attempts for the present step."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """Metrics since the last time."""
        return {}

    def prune(self, step: int) -> None:
        """The oldest checkpoint is of `step`: forget what only an older one would need."""

    async def close(self) -> None:
        """End what is under way."""

    def state_dict(self) -> dict[str, Any]:
        """State that a checkpoint keeps."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""


def no_needs(options: Any) -> frozenset[str]:
    return frozenset()


def no_check(options: Any) -> None:
    """Nothing can be wrong."""


def no_objection(options: Any) -> str:
    return ""


def plain_runner(config: Any, runner: Runner, folder: Path) -> Runner:
    return runner


@dataclass(frozen=True)
class SourceKind(ClassPart):
    """A kind of source: a table [source] with this `kind`. build: (options) -> Source."""

    needs: Callable[[Any], frozenset[str]] = no_needs
    """Capabilities that the environment must have ("solver", "two_player"), by the options."""
    provides: frozenset[str] = frozenset()
    """Columns that only its episodes have."""
    players: int = 1
    """Groups for each task: one for each role. `rollout.groups` must be a multiple."""
    by_policy: bool = False
    """Every episode is played by the present policy through the runner, so that it may be played while a step learns
    (`rollout.staleness`) and on other machines ([scale])."""
    runner: Callable[[Any, Runner, Path], Runner] = plain_runner
    """(the configuration, a runner of the environment, the folder) -> the runner that plays a run's episodes."""
    serves_policy: bool = False
    """Episodes are played by programs that ask for replies over HTTP: whoever starts the run serves the policy."""
    check: Callable[[Any], None] = no_check
    """Raises ConfigError where a run with these options is certain to fail."""
    not_in_lockstep: Callable[[Any], str] = no_objection
    """Reason why `rollout.lockstep` cannot be kept with these options; "" where it can."""
