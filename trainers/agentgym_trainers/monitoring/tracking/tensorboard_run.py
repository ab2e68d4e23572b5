"""TensorBoard: event files in the run's folder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

# protobuf makes these classes as it is imported, and has no types for them
from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.summary.writer.record_writer import RecordWriter

from agentgym_trainers.monitoring.tracking.episodes import Rows
from agentgym_trainers.monitoring.tracking.tracker import TrackedRun

FOLDER = "tensorboard"


class TensorBoardTracker:
    """Scalars by "phase/name"; a resumed run adds another file of events. A line is written before `log` returns:
    SummaryWriter writes from a thread of its own, whose failure on a full disk is a traceback beside the run's error.
    """

    def __init__(self, run: TrackedRun) -> None:
        self.id = FOLDER
        self._path = run.folder / FOLDER / f"events.out.tfevents.{time.time_ns()}"
        self._path.parent.mkdir(exist_ok=True)
        _append(self._path, Event(wall_time=time.time(), file_version="brain.Event:2"))

    def log(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        values = [Summary.Value(tag=f"{phase}/{name}", simple_value=value) for name, value in metrics.items()]
        _append(self._path, Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def log_episodes(self, step: int, columns: Sequence[str], rows: Rows) -> None:
        """TensorBoard has no tables."""

    def close(self, finished: bool) -> None:
        """Every line is written already."""


def _append(path: Path, event: Event) -> None:
    with path.open("ab") as file:
        RecordWriter(file).write(event.SerializeToString())
