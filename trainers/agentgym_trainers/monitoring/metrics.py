"""Metrics of a run: `metrics.jsonl`, always, and the trackers beside it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.errors import CheckpointError
from agentgym.rollouts.trajectory import Trajectory
from agentgym_credit.batch import Batch, Credit
from agentgym_trainers.data.sequences import is_demonstration
from agentgym_trainers.monitoring.tracking.trackers import Trackers
from agentgym_trainers.monitoring.turn_bins import NAMES, bin_of_turns


class MetricsLog:
    """Appends one line a step: {"phase", "step", "group/name": number, ...}. Names under "time/" are seconds, and the
    only ones that differ between two runs of the same seed."""

    def __init__(self, run: Path, position: int = 0, trackers: Trackers | None = None) -> None:
        """`position`: bytes of the file that count; a resumed run drops what came after its checkpoint. `trackers` get
        the same numbers, and stay open."""
        self.path = run / "metrics.jsonl"
        self.path.touch()
        with self.path.open("r+b") as file:
            file.truncate(min(position, self.position))
        self.trackers = trackers or Trackers()

    @property
    def position(self) -> int:
        return self.path.stat().st_size

    def state_dict(self) -> dict[str, Any]:
        """State of the file for a checkpoint; `check_metrics` reads it."""
        return {"metrics_bytes": self.position, "metrics_sha256": hashlib.sha256(self.path.read_bytes()).hexdigest()}

    def write(self, phase: str, step: int, metrics: dict[str, float]) -> None:
        clean = {name: (float(value) if math.isfinite(value) else None) for name, value in metrics.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"phase": phase, "step": step, **clean}) + "\n")
        self.trackers.log(phase, step, {name: value for name, value in clean.items() if value is not None})

    def close(self) -> None:
        self.trackers.close()


def check_metrics(run: Path, state: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless metrics.jsonl begins with what it held when the checkpoint was written."""
    path, position, digest = run / "metrics.jsonl", state.get("metrics_bytes"), state.get("metrics_sha256")
    if type(position) is not int or position < 0:
        raise CheckpointError(
            f"the trainer.pt of step {state['step']} does not fit this run (metrics_bytes is {position!r:.60}); delete "
            "that checkpoint to go on from the one before"
        )
    content = path.read_bytes()[:position] if path.is_file() else b""
    unchanged = digest is None or hashlib.sha256(content).hexdigest() == digest
    if len(content) == position and unchanged and content[-1:] in (b"", b"\n"):
        return
    step = _last_complete_step(content)
    what = "is not what the run wrote" if path.is_file() else "is gone"
    raise CheckpointError(
        f"{path} {what} until its checkpoint of step {state['step']} (only its lines until step {step} can be read): "
        f"put the file back, or delete the checkpoints after step {step} if there is an earlier one, or begin a new run"
    )


def _last_complete_step(content: bytes) -> int:
    """The step until which the lines can be read."""
    last = 0
    for line in content.split(b"\n")[:-1]:
        try:
            entry = json.loads(line)
            last = int(entry["step"]) if entry["phase"] == "rl" else last
        except (ValueError, KeyError, TypeError, RecursionError):
            break
    return last


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Metrics of the episodes; failures are counted apart and enter nothing else, demonstrations nothing."""
    trajectories = [t for t in trajectories if not is_demonstration(t)]
    counted = [t for t in trajectories if not t.stop.is_failure]
    turns = [turn for t in counted for turn in t.turns]
    n, k = max(len(counted), 1), max(len(turns), 1)
    return {
        "rollout/success": sum(t.success for t in counted) / n,
        "rollout/score": sum(t.score for t in counted) / n,
        "rollout/turns": len(turns) / n,
        "rollout/truncated": sum(t.stop.is_limit for t in counted) / n,
        "rollout/invalid": sum(turn.action is None or turn.info.get("valid_action") is False for turn in turns) / k,
        "rollout/cut_by_length": sum(turn.finish == "length" for turn in turns) / k,
        "rollout/failed": float(len(trajectories) - len(counted)),
        "rollout/forks": sum(len(t.forks) for t in counted) / n,
    }


def credit_metrics(batch: Batch, credit: Credit) -> dict[str, float]:
    """Metrics of advantages, and of how well the critic explains its targets."""
    advantage = credit.advantage_A
    if not len(advantage):
        return {}
    metrics = {
        "credit/mean": float(advantage.mean()),
        "credit/std": float(advantage.std()),
        "credit/zero_fraction": float((advantage == 0).mean()),
        "credit/positive_fraction": float((advantage > 0).mean()),
    }
    for column, target in credit.targets.items():
        spread = float(np.var(target))
        if spread > 0:
            metrics["value/explained_variance"] = 1 - float(np.var(target - batch.x[column])) / spread
            metrics |= explained_by_turn(batch, column, target)
        metrics["value/mean"] = float(batch.x[column].mean())
        metrics["value/target_mean"] = float(target.mean())
    return metrics


def explained_by_turn(batch: Batch, column: str, target: np.ndarray) -> dict[str, float]:
    """1 − Var(G − V) / Var(G) over what lies at the first turn, the second, the third or fourth, ... of its attempt.

    Population: the batch's turns (column "_N") or tokens ("_A") there. Left out where all targets are equal.
    """
    bin_N = bin_of_turns(batch)
    bin_ = bin_N if column.endswith("_N") else bin_N[batch.turn_A]
    found = {}
    for number, name in enumerate(NAMES):
        here = bin_ == number
        spread = float(np.var(target[here])) if here.any() else 0.0
        if spread > 0:
            found[f"value/explained_variance_turn_{name}"] = (
                1 - float(np.var((target - batch.x[column])[here])) / spread
            )
    return found


def success_rate(trajectories: list[Trajectory]) -> float:
    """Share of successes among the episodes that did not fail for infrastructure's sake."""
    counted = [t for t in trajectories if not t.stop.is_failure]
    return sum(t.success for t in counted) / max(len(counted), 1)
