"""Credit by advantage estimation on values that are not learned: a state's value is what its visits returned."""

from __future__ import annotations

import numpy as np

from agentgym_credit.batch import Batch, Credit
from agentgym_credit.bounds import UnitInterval
from agentgym_credit.segments import ROUNDING, named, reverse_scan, segment_mean


def gagpo(batch: Batch, *, gamma: UnitInterval = 0.95, lam: UnitInterval = 0.9) -> Credit:
    """GAE over turns, V(s) the mean return of the group's visits of s in place of a critic's.

    V(s) = mean of G_t over the group's turns at s, G_t = Σ_{k≥t} γ^{k−t} r_k;
    A_t = Σ_k (γλ)^k δ_{t+k},  δ_t = r_t + γ V(s_{t+1}) − V(s_t), V after the last turn 0.
    Zhu et al. 2026 (GAGPO, 2605.13217), whose normalization within the group is `normalize = "turn"` here, over the
    batch. λ = 1 is the return less V: `gigpo`'s second term alone. λ < 1 lends a visit the luck of the others from the
    next state on, and so has less noise. Population: all turns of the group at the same state, the own one included: of
    a state that K visit, (K − 1)/K of the advantage. K = 1, a lone visit or an unnamed state (−1): its own return is
    its value, so that it adds nothing. Truncated: what was collected counts. All-equal rewards at the end and γ = 1:
    exactly 0.
    """
    visited_N = named(batch.group_M[batch.traj_N], batch.anchor_N)
    return_N = reverse_scan(batch.reward_N, batch.traj_N, gamma)
    value_N = segment_mean(return_N, visited_N)[visited_N]
    next_N = np.where(batch.last_N, 0.0, np.roll(value_N, -1))
    advantage_N = reverse_scan(batch.reward_N + gamma * next_N - value_N, batch.traj_N, gamma * lam)
    known_N = np.abs(advantage_N) > ROUNDING * np.abs(return_N).max(initial=0.0)
    return Credit(np.where(known_N, advantage_N, 0.0)[batch.turn_A])
