"""Trackio: a local database, or a Space where TRACKIO_SPACE_ID names one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

from agentgym_trainers.monitoring.tracking.episodes import Rows
from agentgym_trainers.monitoring.tracking.tracker import TrackedRun


class TrackioTracker:
    """A run of Trackio, which goes by its name."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        self.id = run.id or run.new_id()
        self._table = trackio.Table
        with _silence():
            self._run = trackio.init(
                project=run.options.project,
                name=self.id,
                config=dict(run.config),
                resume="never" if run.id is None else "allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({f"{phase}/{name}": value for name, value in metrics.items()}, step=step)

    def log_episodes(self, step: int, columns: Sequence[str], rows: Rows) -> None:
        self._run.log({"rl/episodes": self._table(columns=list(columns), data=rows)}, step=step)

    def close(self, finished: bool) -> None:
        with _silence():
            self._run.finish()


@contextlib.contextmanager
def _silence():
    """Trackio prints how to open its dashboard, into the bars of a run."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
