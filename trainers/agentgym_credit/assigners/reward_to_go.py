"""Credit from what is still to come at each turn, compared among the group's trajectories at the same turn index."""

from __future__ import annotations

import numpy as np

from agentgym_credit.batch import Batch, Credit
from agentgym_credit.bounds import UnitInterval
from agentgym_credit.segments import joined, position, reverse_scan, segment_mean, standardize


def rtg_loo(batch: Batch, *, gamma: UnitInterval = 1.0) -> Credit:
    """Reward to go minus the others' mean from the same turn index on: unbiased.

    A_{i,t} = G_{i,t} − 1/(K−1) Σ_{j≠i} G_{j,t},  G_t = Σ_{k≥t} γ^{k−t} r_k, and G_{j,t} = 0 after j's end: an episode
    that is over is padded with an absorbing state, so the baseline never depends on trajectory i.
    The leave-one-out baseline of Kool et al. 2019, once a turn. Population: the group's trajectories but this one, at
    the same turn index, the ended ones included as 0. K = 1: 0. Truncated: what was collected counts. All-equal
    returns: exactly 0 where lengths are equal too; a turn that others never reach keeps its return as its advantage
    (noise of mean 0: the baseline there is 0).
    """
    group_N = batch.group_M[batch.traj_N]
    to_go_N = reverse_scan(batch.reward_N, batch.traj_N, gamma)
    at_N = joined(group_N, position(batch.traj_N))
    size_N = np.bincount(batch.group_M)[group_N]
    alive_N = np.bincount(at_N)[at_N]
    own_share_N = size_N / np.maximum(size_N - 1, 1)
    over_N = (1 - alive_N / np.maximum(size_N, 1)) * segment_mean(to_go_N, at_N)[at_N]
    centered_N = standardize(to_go_N, at_N, scale=False) + over_N
    return Credit(np.where(size_N > 1, own_share_N * centered_N, 0.0)[batch.turn_A])


def mt_grpo(batch: Batch, *, gamma: UnitInterval = 1.0, eps: float = 1e-6) -> Credit:
    """Each turn's reward standardized among the group's turns of the same index, then summed from the turn on: BIASED.

    r̂_{i,t} = (r_{i,t} − mean_t r) / (std_t r + eps);  A_{i,t} = Σ_{k≥t} γ^{k−t} r̂_{i,k}.
    Zeng et al. 2025 (MT-GRPO, 2505.11821), for any number of turns. A turn is compared only with those that got as
    far, so that getting there earns nothing: where going on (probability .3) leads to one more turn of reward 1, the
    true gradient is .210 and this one's expectation exactly 0. It is unbiased up to its scale if all episodes have
    equally many turns. The expectation of `rtg_loo` there is .210.
    Population: the group's trajectories that reach the turn index (std with n − 1). A turn index reached once, and
    K = 1: 0. Truncated: what was collected counts. All-equal rewards: 0 if episodes are equally long, as each turn
    index must be equal within.
    """
    at_N = joined(batch.group_M[batch.traj_N], position(batch.traj_N))
    return Credit(reverse_scan(standardize(batch.reward_N, at_N, eps=eps), batch.traj_N, gamma)[batch.turn_A])
