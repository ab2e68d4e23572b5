"""Sources: where a step's episodes come from.

A source is a class that is built from its options (a table [source] with `kind`) and asked for groups, step by step. To
add one, write its file and add it here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel

from agentgym.trajectory import Group
from agentgym_trainers.sources.online import Online, OnlineSource

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
    needs: frozenset[str] = frozenset()
    """Capabilities of the world ("snapshot", "expert")."""

    @property
    def description(self) -> str:
        return (inspect.getdoc(self.options) or "").partition("\n")[0]


SOURCES: dict[str, SourceKind] = {
    "online": SourceKind(Online, OnlineSource),
}
AnySource = Online
"""The options of any of them: a union told apart by `kind`, once there are several."""
