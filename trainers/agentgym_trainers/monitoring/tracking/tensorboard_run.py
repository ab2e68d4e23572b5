"""TensorBoard: event files in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.utils.tensorboard import SummaryWriter

from agentgym_trainers.monitoring.tracking.episodes import Rows
from agentgym_trainers.monitoring.tracking.tracker import TrackedRun

FOLDER = "tensorboard"


class TensorBoardTracker:
    """Scalars by "phase/name"; a resumed run adds another file of events."""

    def __init__(self, run: TrackedRun) -> None:
        self.id = FOLDER
        self._writer = SummaryWriter(str(run.folder / FOLDER))

    def log(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(f"{phase}/{name}", value, step)

    def log_episodes(self, step: int, columns: Sequence[str], rows: Rows) -> None:
        """TensorBoard has no tables."""

    def close(self, finished: bool) -> None:
        self._writer.close()
