"""Tasks as data: what an environment asks, apart from the engine in which it is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from agentgym.errors import ConfigError


class Task(BaseModel):
    """One task. Everything is JSON, so that a task can be hashed, stored and sent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    """Name of the task in its data set, unique in its split."""
    prompt: str
    """Text that the agent reads first."""
    setup: dict[str, Any] = {}
    """Settings of the engine: an image, files, tools."""
    grader: dict[str, Any] = {}
    """Kind of the grader and what it compares with. The agent never reads it."""
    metadata: dict[str, Any] = {}
    """Facts of the data set that neither engine nor grader needs: difficulty, source, a written solution."""
    source: str = Field(default="", exclude=True)
    """Folder from which the task was read. No part of what it is, nor of its hash."""


class TaskSet:
    """The tasks of an environment, by split.

    Raises ConfigError for a split without tasks and for an id that a split has twice.
    """

    def __init__(self, splits: Mapping[str, Sequence[Task]]) -> None:
        self._tasks = {split: tuple(tasks) for split, tasks in splits.items()}
        for split, tasks in self._tasks.items():
            if not tasks:
                raise ConfigError(f"split {split!r} has no tasks")
            ids: set[str] = set()
            for task in tasks:
                if task.id in ids:
                    raise ConfigError(f"split {split!r} has two tasks with the id {task.id!r}: give each its own")
                ids.add(task.id)

    @property
    def splits(self) -> dict[str, int]:
        """Number of tasks in each split."""
        return {split: len(tasks) for split, tasks in self._tasks.items()}

    def __len__(self) -> int:
        return sum(map(len, self._tasks.values()))

    def __getitem__(self, place: tuple[str, int]) -> Task:
        """Return the task at (split, index). Raises KeyError or IndexError."""
        split, index = place
        return self._tasks[split][index]

    @cached_property
    def content_hash(self) -> str:
        """Hash of all splits and tasks in their order: "sha256:" and 64 hexadecimal digits.

        Two sets with one hash ask and grade the same. It is made of sorted JSON in ASCII, and so depends on neither
        locale nor hash seed nor version of Python.
        """
        digest = hashlib.sha256()
        for split in sorted(self._tasks):
            for value in (split, *(task.model_dump() for task in self._tasks[split])):
                line = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
                digest.update(line.encode("ascii") + b"\n")
        return f"sha256:{digest.hexdigest()}"
