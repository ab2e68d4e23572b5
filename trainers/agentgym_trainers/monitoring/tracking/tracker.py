"""Tracker: what each of them is to a run."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentgym_trainers.monitoring.tracking.episodes import Rows
from agentgym_trainers.monitoring.tracking.options import TrackingOptions


class Tracker(Protocol):
    """Connection to one tracker's run."""

    id: str
    """Name of the run there, with which it is resumed."""

    def log(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """Record finite numbers by name; the tracker shows them as "phase/name"."""
        ...

    def log_episodes(self, step: int, columns: Sequence[str], rows: Rows) -> None:
        """Record a table."""
        ...

    def close(self, finished: bool) -> None:
        """Write what is pending. `finished`: the run came to its end, and was not stopped."""
        ...


@dataclass(frozen=True)
class TrackedRun:
    """Description of a run that a tracker is opened for."""

    folder: Path
    options: TrackingOptions
    config: Mapping[str, Any]
    """The resolved configuration, JSON-able."""
    id: str | None
    """The tracker's id of the run, when it is resumed."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def new_id(self) -> str:
        """A fresh id: another run in a folder of this name is another run."""
        return f"{self.name}-{secrets.token_hex(4)}"
