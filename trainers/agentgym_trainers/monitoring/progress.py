"""Progress of a run's phases: bars with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

from time import monotonic
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LINE_S = 5.0
"""Seconds between two lines of one phase where standard output is no terminal."""


class Phases(Progress):
    """Bars on a terminal. Elsewhere a line at the end of each phase, and every few seconds before."""

    def __init__(self, *, line_s: float = LINE_S, **options: Any) -> None:
        super().__init__(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TimeRemainingColumn(), expand=False, **options,
        )  # fmt: skip
        self.line_s = line_s
        self.disable = not self.console.is_terminal
        self._printed_at: dict[TaskID, float] = {}

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Update a phase, and print its line where there is no terminal and one is due."""
        super().update(task_id, **changes)
        if not self.disable:
            return
        now, task = monotonic(), self._tasks[task_id]
        begun = self._printed_at.setdefault(task_id, now)
        if task.finished or now - begun >= self.line_s:
            self._printed_at[task_id] = now
            left = task.time_remaining
            count = f"{task.completed:.0f}" if task.total is None else f"{task.completed:.0f} of {task.total:.0f}"
            suffix = "" if left is None or task.finished else f", {left:.0f} s left"
            self.console.print(f"{task.description}: {count}{suffix}", highlight=False, soft_wrap=True)
