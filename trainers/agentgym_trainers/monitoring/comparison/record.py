"""RunRecord: what a run's folder says of its course."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.errors import CheckpointError, ConfigError
from agentgym_trainers.monitoring.metrics_file import Numbers, read_metrics

MEASURE = "rollout/success"


@dataclass(frozen=True)
class RunRecord:
    """A run, read from config.toml and metrics.jsonl."""

    folder: Path
    config: dict[str, Any]
    rows: dict[str, dict[int, Numbers]]
    """Metrics by phase and step."""
    notes: tuple[str, ...]
    """Lines of metrics that could not be read."""

    @property
    def recipe(self) -> str:
        return str(self.config.get("name", ""))

    @property
    def environment(self) -> str:
        return str(self.config.get("env", {}).get("name", ""))

    @property
    def seed(self) -> int:
        return self.config.get("run", {}).get("seed", 0)

    @property
    def step(self) -> int:
        """The last training step that metrics.jsonl has."""
        return max(self.rows.get("rl", {}), default=0)

    @property
    def steps(self) -> int:
        """Steps that the run is to have."""
        return self.config.get("run", {}).get("steps", 0)

    @property
    def finished(self) -> bool:
        """All steps were made, and the evaluation after them, if the run has one."""
        evaluated = self.config.get("eval", {}).get("tasks", 0) == 0 or self.steps in self.rows.get("eval", {})
        return self.step >= self.steps and evaluated

    def curve(self, measure: str = MEASURE) -> list[tuple[float, float]]:
        """(episodes played so far, measure) of every step that has the measure."""
        rollout = self.config.get("rollout", {})
        size, episodes, points = rollout.get("groups", 0) * rollout.get("group_size", 0), 0.0, []
        for _, row in sorted(self.rows.get("rl", {}).items()):
            episodes += size * (row.get("select/tries") or 1)
            value = row.get(measure)
            if value is not None:
                points.append((episodes, value))
        return points

    def held_out(self) -> float | None:
        """Success on held-out tasks after the last step; None before it was measured."""
        return self.rows.get("eval", {}).get(self.steps, {}).get("eval/success") if self.finished else None


def load_record(folder: Path) -> RunRecord:
    """The record of a run's folder. Raises CheckpointError where config.toml cannot be read."""
    try:
        config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder / 'config.toml'} cannot be read ({error}); delete the run, or repair it"
        ) from error
    notes: list[str] = []
    path = folder / "metrics.jsonl"
    rows = read_metrics(path, notes) if path.is_file() else {}
    return RunRecord(folder, config, rows, tuple(notes))


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Folders of runs: each given one, or all below it. Raises ConfigError where there is none."""
    found: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {folder}")
        below = list(_below(folder))
        if not below:
            raise ConfigError(f"{folder} holds no run (no config.toml in it or below); name a run, or a folder of runs")
        found |= dict.fromkeys(below)
    return list(found)


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders.sort()
        if "config.toml" in files:
            folders.clear()  # a run holds no other runs
            yield Path(place)
