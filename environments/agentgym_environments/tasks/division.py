"""Division of a set of tasks into those for training and those for tests: by a share, or by names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from agentgym.errors import ConfigError
from agentgym.tasks import Task

Division = float | frozenset[str]
"""Share of the tasks that are for training, or their names. 0.0: none is."""


def division(environment: str, train: float | str) -> Division:
    """Return the division that an argument `train` names: a share, or a text file with a name a line.

    Raises ConfigError for what is neither.
    """
    if train == "":
        return 0.0
    if isinstance(train, int | float) and not isinstance(train, bool) and 0 < train < 1:
        return float(train)
    if isinstance(train, str):
        path = Path(train).expanduser()
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{environment}: train names a file that cannot be read: {error}") from error
        if names := frozenset(line.strip() for line in lines if line.strip()):
            return names
        raise ConfigError(f"{environment}: {path} names no task: write one name a line")
    raise ConfigError(f"{environment}: train is a share between 0 and 1 or a file of names, not {train!r}")


def divided(tasks: Sequence[Task], train: Division) -> dict[str, list[Task]]:
    """Return the tasks of the splits "train" and "test".

    By a share, where a task belongs depends on its id alone: it stays there when others come or go. A name is an id, or
    its part after the last slash. Raises ConfigError for names that no task has, and where a split would be empty.
    """
    if isinstance(train, frozenset):
        known = {name for task in tasks for name in (task.id, _short(task.id))}
        if unknown := sorted(train - known):
            raise ConfigError(
                f"no task is called {', '.join(unknown[:5])}; there are {', '.join(sorted(known)[:5])} ..."
            )
    splits: dict[str, list[Task]] = {"train": [], "test": []}
    for task in tasks:
        splits["train" if _is_for_training(task.id, train) else "test"].append(task)
    for split, some in splits.items():
        if not some:
            raise ConfigError(
                f"of {len(tasks)} tasks none would be left for {split!r}: give train another share or names"
            )
    return splits


def _is_for_training(task: str, train: Division) -> bool:
    if isinstance(train, frozenset):
        return task in train or _short(task) in train
    return int.from_bytes(hashlib.sha256(task.encode()).digest()[:8], "big") < train * 2**64


def _short(task: str) -> str:
    return task.rpartition("/")[2]
