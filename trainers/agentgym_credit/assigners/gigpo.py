"""Credit from returns, compared within a group twice: between trajectories, and between visits of the same state."""

from __future__ import annotations

from typing import Literal

from agentgym_credit.batch import Batch, Credit
from agentgym_credit.bounds import UnitInterval
from agentgym_credit.segments import named, reverse_scan, standardize


def gigpo(
    batch: Batch, *, omega: float = 1.0, gamma: UnitInterval = 0.95, norm: Literal["mean", "std"] = "mean"
) -> Credit:
    """The trajectory's advantage in its group plus the turn's among all visits of the same state.

    A_{i,t} = A_E(R_i) + ω A_S(G_t),  G_t = Σ_{k≥t} γ^{k−t} r_k;  both x − mean, or over (std + 1e-6) with norm="std".
    Feng et al. 2025 (GiGPO, 2505.10978) §4. Population: of A_E the group's trajectories, each once whatever its
    length; of A_S all turns of the group with the same anchor, a trajectory's repeated visits included (std with
    n − 1). K = 1: A_E is 0, A_S compares repeated visits. A lone anchor or none (−1): A_S is 0. Truncated: what was
    collected counts. All-equal rewards: A_E exactly 0; A_S too if γ = 1 (else a later visit has a larger G).
    The released code takes A_E's mean and std over step rows, so that a long trajectory counts more often.
    """
    visited_N = named(batch.group_M[batch.traj_N], batch.anchor_N)
    return_N = reverse_scan(batch.reward_N, batch.traj_N, gamma)
    episode_M = standardize(batch.return_M, batch.group_M, scale=norm == "std")
    step_N = standardize(return_N, visited_N, scale=norm == "std")
    return Credit((episode_M[batch.traj_N] + omega * step_N)[batch.turn_A])
