"""Credit from an implicit reward model: how much more likely it finds each token than its reference does.

`prm_A` is q_j = ℓ_φ(token) − ℓ_ref(token), not times β, or the difference of probabilities. It is combined with the
outcome as an advantage of its own.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from agentgym_credit.batch import Batch, Credit
from agentgym_credit.bounds import UnitInterval
from agentgym_credit.segments import leave_one_out, position, reverse_scan, segment_mean, standardize


def prime(
    batch: Batch,
    *,
    variant: Literal["released", "paper"] = "released",
    beta: float = 0.05,
    coefficient: float = 5.0,
    gamma: UnitInterval = 1.0,
) -> Credit:
    """Two leave-one-out advantages, of the outcome and of every token's implicit reward, each after its own baseline.

    A_{i,j} = Σ_{s≥j} γ^{s−j} (x_{i,s} − b_{i,s}) + R_i − 1/(K−1) Σ_{k≠i} R_k,  x̄_k the mean over k's tokens:
    "paper"     x = beta · q;                                       b_i = 1/(K−1) Σ_{k≠i} x̄_k
    "released"  x = coefficient · q / max over the batch of |Σ_{s≥j} q_s|;  x − b = K/(K−1) x − 1/(K−1) Σ_k x̄_k
    Cui et al. 2025 (PRIME, 2502.01456) and released code, which whitens the sum over all tokens afterwards
    (credit.normalize = "token") and whose scale does not depend on β. Its x − b differs by (x_{i,s} − x̄_i)/(K−1).
    Population: the group's trajectories but this one, each once, by the mean over its tokens; the released scale is the
    whole batch's. K = 1: 0. Truncated: what was collected counts. All-equal rewards: the outcome's part is exactly 0.
    """
    prm_A, traj_A, group_M = batch.x["prm_A"], batch.traj_A, batch.group_M
    size_M = np.bincount(group_M)[group_M]
    others_M = np.maximum(size_M - 1, 1)
    if variant == "released":
        largest = np.abs(reverse_scan(prm_A, traj_A, 1.0)).max(initial=0.0)
        reward_A = coefficient * prm_A / (largest + 1e-6)
    else:
        reward_A = beta * prm_A
    mean_M = segment_mean(reward_A, traj_A)
    sum_M = np.bincount(group_M, mean_M)[group_M]
    if variant == "released":
        centered_A = (size_M / others_M)[traj_A] * reward_A - (sum_M / others_M)[traj_A]
    else:
        centered_A = reward_A - ((sum_M - mean_M) / others_M)[traj_A]
    process_A = np.where(size_M[traj_A] > 1, reverse_scan(centered_A, traj_A, gamma), 0.0)
    return Credit(process_A + leave_one_out(batch.return_M, group_M)[traj_A])


def prm_tokens(batch: Batch, *, gamma: UnitInterval = 1.0) -> Credit:
    """Every token's implicit reward-to-go against the group's others: PRIME's process part alone, as a credit term.

    A_{i,j} = Σ_{s≥j} γ^{s−j} (q_{i,s} − 1/(K−1) Σ_{k≠i} q̄_k), q̄_k the mean over k's tokens. Its scale is the
    log-ratio's: normalize it. PRIME (2502.01456), variant "paper". Population: the group's trajectories but this one,
    each once. K = 1: 0. Truncated: what was collected counts. All-equal rewards: not 0, the model may tell trajectories
    apart.
    """
    prm_A, traj_A, group_M = batch.x["prm_A"], batch.traj_A, batch.group_M
    size_M, mean_M = np.bincount(group_M)[group_M], segment_mean(prm_A, traj_A)
    others_M = (np.bincount(group_M, mean_M)[group_M] - mean_M) / np.maximum(size_M - 1, 1)
    to_go_A = reverse_scan(prm_A - others_M[traj_A], traj_A, gamma)
    return Credit(np.where(size_M[traj_A] > 1, to_go_A, 0.0))


def prm_turns(batch: Batch, *, aggregate: Literal["sum", "mean"] = "sum") -> Credit:
    """Every turn's implicit reward against all turns of the group: iStar's process part alone, as a credit term.

    s_{i,t} = Σ of q over the turn's tokens ("mean": their mean, as a sum whose q are mostly negative rewards short
    turns);  A_{i,t} = s − mean. iStar (2509.19199); its division by the standard deviation is `normalize = "turn"`.
    Population: all turns of the group, so a long trajectory counts more often. K = 1: the trajectory's turns are
    compared. Truncated: what was collected counts. All-equal rewards: not 0, the model may tell turns apart.
    """
    step_N = np.bincount(batch.turn_A, batch.x["prm_A"])
    if aggregate == "mean":
        step_N = step_N / np.bincount(batch.turn_A)
    return Credit(standardize(step_N, batch.group_M[batch.traj_N], scale=False)[batch.turn_A])


def istar(batch: Batch, *, alpha: float = 1.0, beta: float = 0.05, eps: float = 1e-6, released: bool = False) -> Credit:
    """The trajectory's advantage in its group plus the turn's among all turns of the group, by an implicit reward.

    s_{i,t} = beta · Σ of q over the turn's tokens;  A_{i,t} = A_E(R_i) + alpha A_S(s_{i,t}), both x − mean over
    (std + eps).
    Liu et al. 2025 (iStar, 2509.19199); β cancels but for eps. Population: of A_E the group's trajectories, each
    once; of A_S all turns of the group, so a long trajectory counts more often; std with n − 1. K = 1: A_E is 0, A_S
    compares the trajectory's turns. Truncated: what was collected counts. All-equal rewards: A_E is exactly 0.
    `released` is the code's "istar_rloo": A_E = leave-one-out, A_S = K/(K−1) (s − mean of the trajectories' FIRST
    turns), K the number of trajectories: turns after the first are compared with turns that are not like them, so A_S
    has not mean 0. (The code also divides s by the batch's largest |Σ_{t'≥t} s|; K = 1: 0.)
    """
    step_N = beta * np.bincount(batch.turn_A, batch.x["prm_A"])
    group_N = batch.group_M[batch.traj_N]
    if released:
        first_N = position(batch.traj_N) == 0
        size_M = np.bincount(batch.group_M)[batch.group_M]
        factor_N = np.where(size_M > 1, size_M / np.maximum(size_M - 1, 1), 0.0)[batch.traj_N]
        centered_N = factor_N * (step_N - segment_mean(step_N[first_N], batch.group_M)[group_N])
        return Credit((leave_one_out(batch.return_M, batch.group_M)[batch.traj_N] + alpha * centered_N)[batch.turn_A])
    episode_M = standardize(batch.return_M, batch.group_M, eps=eps)
    return Credit((episode_M[batch.traj_N] + alpha * standardize(step_N, group_N, eps=eps))[batch.turn_A])
