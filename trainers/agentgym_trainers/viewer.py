"""Trajectories with their credit, as the report shows them: one JSON line an episode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.trajectory import Trajectory
from agentgym_trainers.batch import Batch, Credit
from agentgym_trainers.rows import rows_of

LIMIT = 32
"""Episodes kept of a step."""


def write_trajectories(
    path: Path, batch: Batch, credit: Credit, trajectories: Sequence[Trajectory], tokenizer: Any
) -> None:
    """Write whole groups, the first `LIMIT` episodes of the step, annotated."""
    path.parent.mkdir(parents=True, exist_ok=True)
    first_A = np.searchsorted(batch.traj_A, np.arange(len(trajectories)))
    with path.open("w", encoding="utf-8") as file:
        for m, trajectory in enumerate(trajectories[:LIMIT]):
            notes = _annotate(m, int(first_A[m]), batch, credit, trajectory, tokenizer)
            file.write(json.dumps({**trajectory.to_json(), "annotations": notes}, ensure_ascii=False) + "\n")


def _annotate(
    m: int, first: int, batch: Batch, credit: Credit, trajectory: Trajectory, tokenizer: Any
) -> dict[str, list]:
    """{"value", "advantage"} a turn (an advantage that differs within the turn is its mean), and a token."""
    turns = np.flatnonzero(batch.traj_N == m)
    mean_N = [float(credit.advantage_A[batch.turn_A == n].mean()) for n in turns]
    values = [float(batch.x["value_N"][n]) for n in turns] if "value_N" in batch.x else [None] * len(turns)
    advantages: list[list[float | None]] = [[None] * len(branch.ids) for branch in trajectory.branches]
    kept = [b for b in range(len(trajectory.branches)) if (trajectory.branches[b].turn >= 0).any()]
    rows = [row for row in rows_of(trajectory, m, first) if len(row.action_at)]
    for b, row in zip(kept, rows, strict=True):
        for at, index in zip(row.action_at.tolist(), row.action_index.tolist(), strict=True):
            advantages[b][at] = float(credit.advantage_A[index])
    text = [[tokenizer.decode([token]) for token in branch.ids.tolist()] for branch in trajectory.branches]
    return {"value": values, "advantage": mean_N, "token_advantage": advantages, "token_text": text}
