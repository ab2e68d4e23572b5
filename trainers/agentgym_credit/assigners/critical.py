"""Credit for critical turns alone: those at which the policy did not know what to do."""

from __future__ import annotations

import numpy as np

from agentgym_credit.batch import Batch, Credit
from agentgym_credit.bounds import UnitInterval
from agentgym_credit.segments import at_least, standardize


def critical(batch: Batch, *, share: UnitInterval = 0.3) -> Credit:
    """The trajectory's advantage at the `share` of its group's turns whose entropy is largest; 0 elsewhere.

    A_{i,t} = (R_i − mean R) / (std R + 1e-6) · 1[entropy_t ≥ that of the ⌈share · N⌉-th turn of the group's N].
    After CARL (2512.04949), which finds critical actions by entropy and learns from them alone; its own thresholds and
    sampling are not here. Population: of R the group's trajectories (std with n − 1), of the edge the group's turns.
    Equals at the edge are all kept. K = 1: 0. Truncated: what was collected counts. All-equal rewards: exactly 0.
    """
    advantage_M = standardize(batch.return_M, batch.group_M)
    group_N, kept_N = batch.group_M[batch.traj_N], np.zeros(len(batch.traj_N), bool)
    for group in np.unique(group_N):
        entropy = batch.x["entropy_N"][group_N == group]
        edge = np.sort(entropy)[::-1][max(1, int(np.ceil(share * len(entropy)))) - 1]
        kept_N[group_N == group] = at_least(entropy, edge)
    return Credit(np.where(kept_N, advantage_M[batch.traj_N], 0.0)[batch.turn_A])
