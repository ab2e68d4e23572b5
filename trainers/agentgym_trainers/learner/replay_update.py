"""Self-imitation: one more update on attempts that went well, from the replay buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from agentgym.rollouts.trajectory import Group, Trajectory
from agentgym_credit.assigners.outcome import replay_baseline
from agentgym_credit.batch import Batch, Credit
from agentgym_trainers.config.sections import ReplayOptions
from agentgym_trainers.data.replay_buffer import ReplayBuffer
from agentgym_trainers.data.sequences import collate


def replay_update(
    learner: Any,
    buffer: ReplayBuffer,
    options: ReplayOptions,
    batch: Batch,
    credit: Credit,
    trajectories: Sequence[Trajectory],
    step: int,
    seed: int,
) -> dict[str, float]:
    """Keep the step's good attempts, and learn from what was kept once there is enough of it. Returns metrics."""
    buffer.add(batch, credit, trajectories, step, options)
    metrics = {"replay/kept": float(len(buffer.kept)), "replay/median": buffer.median}
    drawn = buffer.draw(np.random.default_rng([seed, step, 3]), options)
    if not drawn:
        return metrics
    again, rows, _ = collate([Group((trajectory,)) for trajectory in drawn])
    again = learner.annotate(again, rows).with_columns(baseline_M=np.full(len(drawn), buffer.median))
    weighted = replace(replay_baseline(again), weight_A=np.full(len(again.turn_A), options.weight))
    update = learner.update(again, rows, weighted, options.loss)
    return metrics | {"replay/drawn": float(len(drawn)), **{f"replay/{name}": x for name, x in update.items()}}
