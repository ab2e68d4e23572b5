"""Credit from visits of the same state, the more telling the longer the histories that agree."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from agentgym_credit.batch import Batch, Credit
from agentgym_credit.bounds import UnitInterval, Within
from agentgym_credit.segments import ROUNDING, named, position, reverse_scan, standardize


def hgpo(
    batch: Batch,
    *,
    history: Annotated[int, Within(0)] = 2,
    alpha: float = 1.0,
    gamma: UnitInterval = 0.95,
    norm: Literal["mean", "std"] = "mean",
) -> Credit:
    """A turn's return among visits of the same state, averaged over how much of the way there they share.

    A_{i,t} = Σ_l w_l A_l / Σ_l w_l over l = 0 … `history` with A_l ≠ 0, w_l = (l + 1)^alpha;
    A_l = G_t − mean G over the group's turns with the same last l states and the same present one, or that over
    (std + 1e-6), std with n, with norm="std";  G_t = Σ_{k≥t} γ^{k−t} r_k.
    HGPO (2602.22817) as released: l ≤ 2, alpha = 1. It has no term for the whole episode, so a state that is visited
    once has no credit. Population of level l: all turns of the group that agree in l + 1 states, a trajectory's
    repeated visits included; a turn with fewer than l turns before it, or an unnamed state among them (−1), has no
    level l. K = 1: repeated visits are compared. Truncated: what was collected counts. All-equal rewards: exactly 0 if
    γ = 1 (else a later visit has a larger G). A lone visit or an unnamed state: 0.
    """
    to_go_N = reverse_scan(batch.reward_N, batch.traj_N, gamma)
    least = ROUNDING * np.abs(to_go_N).max(initial=0.0)
    position_N, scale = position(batch.traj_N), norm == "std"
    visit_N = named(batch.group_M[batch.traj_N], batch.anchor_N)
    total_N, weight_N = np.zeros(len(to_go_N)), np.zeros(len(to_go_N))
    for level in range(history + 1):
        if level:
            before_N = np.where(position_N >= level, np.roll(batch.anchor_N, level), -1)
            visit_N = named(visit_N, before_N)
        known_N = np.abs(standardize(to_go_N, visit_N, scale=False)) > least  # before a division by their own size
        level_N = standardize(to_go_N, visit_N, scale=scale, ddof=0)
        share_N = np.where(known_N, (level + 1.0) ** alpha, 0.0)
        total_N, weight_N = total_N + share_N * level_N, weight_N + share_N
    return Credit((total_N / np.where(weight_N > 0, weight_N, 1.0))[batch.turn_A])
