"""Journal of issued prompts, ready groups and learned groups, on disk, so that a crash loses none.

A group's id is its place in the curriculum's order. Its way:

    issued    its attempts are being played; after a crash they are played again
    ready     its attempts are kept here until they were learned from
    consumed  by a step; a run that goes on from an earlier checkpoint takes it back

So in the history of the weights that a run ends with, every prompt is learned from exactly once.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.errors import CheckpointError
from agentgym.rollouts.trajectory import Group, Trajectory, json_line

SCHEMA = """
CREATE TABLE IF NOT EXISTS groups (
  id INTEGER PRIMARY KEY, task INTEGER NOT NULL, seed INTEGER NOT NULL, episodes BLOB, step INTEGER
) STRICT
"""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The task of a group's attempts."""

    id: int
    task: int
    seed: int
    """Seed of the environment."""


class Journal:
    """One run's. Every change is on the disk when the call returns. Raises CheckpointError where the file is no
    journal, or cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
        except sqlite3.OperationalError as error:
            raise self._unwritten(error) from error
        try:
            self._do("PRAGMA journal_mode = WAL")
            self._do("PRAGMA synchronous = FULL")
            self._do(SCHEMA)
        except CheckpointError:
            self._db.close()
            raise

    def issue(self, task: int, seed: int) -> Prompt:
        """The next prompt."""
        cursor = self._do("INSERT INTO groups (task, seed) VALUES (?, ?)", (task, seed))
        assert cursor.lastrowid is not None
        return Prompt(cursor.lastrowid, task, seed)

    def ready(self, prompt: Prompt, group: Group) -> None:
        """Its attempts are whole."""
        lines = "".join(json_line(trajectory.to_json()) for trajectory in group.trajectories)
        packed = zlib.compress(lines.encode(), 1)
        self._do("UPDATE groups SET episodes = ? WHERE id = ?", (packed, prompt.id))

    def consumed(self, prompts: Iterable[Prompt], step: int) -> None:
        """They are learned from in the update that makes the weights of version `step`."""
        ids = json.dumps([prompt.id for prompt in prompts])
        self._do("UPDATE groups SET step = ? WHERE id IN (SELECT value FROM json_each(?))", (step, ids))

    def go_back(self, step: int) -> tuple[list[Prompt], list[tuple[Prompt, Group]]]:
        """(prompts to be played, groups that wait to be learned from), as of the weights of version `step`."""
        self._do("UPDATE groups SET step = NULL WHERE step > ?", (step,))
        rows = self._all("SELECT id, task, seed, episodes FROM groups WHERE step IS NULL ORDER BY id")
        waiting = [Prompt(*row[:3]) for row in rows if row[3] is None]
        return waiting, [(Prompt(*row[:3]), self._unpack(row[3])) for row in rows if row[3] is not None]

    def forget(self, step: int) -> None:
        """Attempts that no checkpoint can ask for again: those that weights of version `step` have learned from."""
        self._do("UPDATE groups SET episodes = NULL WHERE step <= ?", (step,))

    def steps(self) -> dict[int, int | None]:
        """Prompt -> the step that learned from it, if one did."""
        return dict(self._all("SELECT id, step FROM groups ORDER BY id"))

    def close(self) -> None:
        self._db.close()

    def _do(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        try:
            return self._db.execute(statement, values)
        except sqlite3.OperationalError as error:  # no room, or a file that may not be written
            raise self._unwritten(error) from error
        except sqlite3.DatabaseError as error:
            raise self._no_journal(error) from error

    def _all(self, query: str) -> list[Any]:
        try:
            return self._db.execute(query).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._no_journal(error) from error

    def _unpack(self, packed: bytes) -> Group:
        try:
            lines = zlib.decompress(packed).decode().splitlines()
            return Group(tuple(Trajectory.from_json(json.loads(line)) for line in lines))
        except (zlib.error, ValueError, KeyError, TypeError) as error:
            raise self._no_journal(error) from error

    def _unwritten(self, error: Exception) -> CheckpointError:
        return CheckpointError(f"could not write {self._path} ({error}); see to it, and resume the run")

    def _no_journal(self, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"{self._path} is no journal of a run ({error}); delete it, and resume: only episodes that no step has "
            "learned from are lost"
        )
