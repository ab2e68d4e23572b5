"""Weights & Biases: https://docs.wandb.ai/ref/python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentgym_trainers.monitoring.tracking.episodes import Rows
from agentgym_trainers.monitoring.tracking.tracker import TrackedRun


class WandbTracker:
    """A run of W&B. Each phase counts its own steps, as "phase/step"."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self.id = run.id or run.new_id()
        self._table = wandb.Table
        self._run = wandb.init(
            project=run.options.project,
            name=run.name,
            id=self.id,
            resume="allow",
            config=dict(run.config),
            dir=str(run.folder),
            mode="offline" if run.options.offline else None,  # None: WANDB_MODE, else online
            settings=wandb.Settings(silent=True, console="off"),
        )
        for phase in ("sft", "rl", "eval"):
            self._run.define_metric(f"{phase}/*", step_metric=f"{phase}/step")

    def log(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({f"{phase}/{name}": value for name, value in metrics.items()} | {f"{phase}/step": step})

    def log_episodes(self, step: int, columns: Sequence[str], rows: Rows) -> None:
        self._run.log({"rl/episodes": self._table(columns=list(columns), data=rows), "rl/step": step})

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)
