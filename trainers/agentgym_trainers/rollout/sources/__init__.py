"""Sources: where a step's episodes come from.

A source is a class that is built from its options (a table [source] with `kind`) and asked for groups, step by step. To
add one, write its file and add it here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import BaseModel, Field

from agentgym.rollouts.trajectory import Group
from agentgym_trainers.rollout.sources.branched import Branched, BranchedSource
from agentgym_trainers.rollout.sources.external_agent import ForeignAgent, ForeignAgentSource
from agentgym_trainers.rollout.sources.offline import Offline, OfflineSource
from agentgym_trainers.rollout.sources.online import Online, OnlineSource
from agentgym_trainers.rollout.sources.self_play import SelfPlay, SelfPlaySource

if TYPE_CHECKING:
    from agentgym_trainers.train import Trainer


class Source(Protocol):
    async def collect(self, trainer: Trainer, groups: int) -> list[Group]:
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


SOURCES: dict[str, SourceKind] = {
    "online": SourceKind(Online, OnlineSource),
    "offline": SourceKind(Offline, OfflineSource, lambda options: frozenset({"expert"} if options.expert else ())),
    "branched": SourceKind(Branched, BranchedSource),
    "harness": SourceKind(ForeignAgent, ForeignAgentSource),
    "selfplay": SourceKind(
        SelfPlay,
        SelfPlaySource,
        lambda options: frozenset({"two_player"} | ({"expert"} if options.opponent == "expert" else set())),
    ),
}
AnySource = Annotated[Online | Offline | Branched | ForeignAgent | SelfPlay, Field(discriminator="kind")]
"""The options of any of them, told apart by `kind`."""
