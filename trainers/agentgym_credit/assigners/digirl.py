"""Credit from a step-level critic that trusts the outcome near the end and itself far from it."""

from __future__ import annotations

import numpy as np

from agentgym_credit.assigners.gae import final_value_M
from agentgym_credit.batch import Batch, Credit
from agentgym_credit.bounds import UnitInterval
from agentgym_credit.segments import remaining, reverse_scan


def digirl(
    batch: Batch,
    *,
    lam: UnitInterval = 0.5,
    filter: bool = False,
    threshold: float = 0.0,
) -> Credit:
    """Doubly robust: the outcome at the end, the critic's temporal difference before; `filter` makes weights of it.

    A_h = λ^{H−h} R + (1 − λ^{H−h}) (V(s_{h+1}) + r_h − V(s_h));  filter: 1 where A_h > threshold, else 0, to imitate.
    Bai et al. 2024 (DigiRL, 2406.11896). The released code has a surrogate:
    A_h = V(s_{h+1}) − V(s_h) + r_h + Σ_{k≥h} γ^{k−h} r_k − .05, γ = .5, with the critic's word for V after the end of
    an episode too, which here is 0.
    Unbiased with an exact critic (without the filter), λ = 1 is R, and at the last turn A = R always: there
    is no baseline, so rewards that are all equal are not 0, and a shift matters. V's target is what is still to come.
    Population: none. K = 1: the same. Truncated: the final observation's value stands for the future, in R too (the
    paper counts a cut episode as failed).
    """
    value_N, final_M = batch.x["value_N"], final_value_M(batch)
    next_N = np.where(batch.last_N, final_M[batch.traj_N], np.roll(value_N, -1))
    difference_N = next_N + batch.reward_N - value_N
    trust_N = lam ** remaining(batch.traj_N)
    outcome_N = (batch.return_M + final_M)[batch.traj_N]
    advantage_N = trust_N * outcome_N + (1 - trust_N) * difference_N
    if filter:
        advantage_N = (advantage_N > threshold).astype(np.float64)
    target_N = reverse_scan(batch.reward_N + np.where(batch.last_N, final_M[batch.traj_N], 0.0), batch.traj_N, 1.0)
    return Credit(advantage_N[batch.turn_A], {"value_N": target_N})
