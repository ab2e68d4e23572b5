"""Credit from a critic: generalized advantage estimation (Schulman et al. 2016, 1506.02438, eq. 16).

A_t = Σ_k (γλ)^k δ_{t+k},  δ_t = r_t + γ V_{t+1} − V_t,  and the critic's target is A_t + V_t.

After the last step V is 0, or `bootstrap_M` where the trajectory was truncated.
"""

from __future__ import annotations

import numpy as np

from agentgym_credit.batch import Batch, Credit
from agentgym_credit.bounds import UnitInterval
from agentgym_credit.segments import reverse_scan


def token_gae(batch: Batch, *, gamma: UnitInterval = 1.0, lam: UnitInterval = 0.95) -> Credit:
    """PPO's advantage, every action token a step: observations are skipped, and use up neither γ nor λ.

    A_j = Σ_k (γλ)^k δ_{j+k} over the action tokens j of a trajectory; a turn's reward falls on its last token.
    Schulman et al. 2016 eq. 16; Ouyang et al. 2022 for language models. Population: none. K = 1: the same. Truncated:
    bootstraps from the final observation. All-equal rewards: 0 only if the critic says so.
    """
    value_A, reward_A = batch.x["value_A"], np.where(batch.last_A, batch.reward_N[batch.turn_A], 0.0)
    advantage_A = _gae(reward_A, value_A, batch.traj_A, final_value_M(batch), gamma, lam)
    return Credit(advantage_A, {"value_A": advantage_A + value_A})


def turn_gae(batch: Batch, *, gamma: UnitInterval = 0.99, lam: UnitInterval = 0.9) -> Credit:
    """Every turn a step: V is read before the turn's first token, and all tokens of the turn share the advantage.

    A_t = Σ_k (γλ)^k δ_{t+k},  δ_t = r_t + γ V(s_{t+1}) − V(s_t).
    Turn-PPO (2512.17008). V read at the end of the turn would be Q(s, a), and the expected gradient exactly 0.
    Population: none. K = 1: the same. Truncated: bootstraps from the final observation. All-equal rewards: 0 only if
    the critic says so.
    """
    value_N = batch.x["value_N"]
    advantage_N = _gae(batch.reward_N, value_N, batch.traj_N, final_value_M(batch), gamma, lam)
    return Credit(advantage_N[batch.turn_A], {"value_N": advantage_N + value_N})


def bilevel_gae(
    batch: Batch,
    *,
    gamma_turn: UnitInterval = 0.95,
    lam_turn: UnitInterval = 0.95,
    gamma: UnitInterval = 1.0,
    lam: UnitInterval = 0.95,
) -> Credit:
    """Turns first, then tokens: each turn's return, by GAE over turn ends, is the reward of GAE over its tokens.

    G_t = Â_t + V^end_t, Â by GAE(γ_turn, λ_turn) on V before each turn's last token;
    A_{t,j} by GAE(γ, λ) on the tokens of turn t alone, G_t the reward of its last.
    VAGEN (2510.16907) bi-level GAE, with explicit turn ends; published with λ_turn = λ. Population: none. K = 1: the
    same. Truncated: turns bootstrap from the final observation. All-equal rewards: 0 only if the critic says so.
    """
    value_A, end_N = batch.x["value_A"], batch.x["value_A"][batch.last_A]
    return_N = end_N + _gae(batch.reward_N, end_N, batch.traj_N, final_value_M(batch), gamma_turn, lam_turn)
    reward_A = np.where(batch.last_A, return_N[batch.turn_A], 0.0)
    advantage_A = _gae(reward_A, value_A, batch.turn_A, np.zeros(len(return_N)), gamma, lam)
    return Credit(advantage_A, {"value_A": advantage_A + value_A})


def _gae(
    reward: np.ndarray, value: np.ndarray, index: np.ndarray, final: np.ndarray, gamma: float, lam: float
) -> np.ndarray:
    """GAE within the segments of `index`; `final` is V after the last row of each."""
    same_next = np.append(np.diff(index) == 0, False)[: len(index)]
    next_value = np.where(same_next, np.roll(value, -1), final[index])
    return reverse_scan(reward + gamma * next_value - value, index, gamma * lam)


def final_value_M(batch: Batch) -> np.ndarray:
    """V after the last turn: the final observation's where the trajectory was truncated, else 0."""
    if not batch.truncated_M.any():
        return np.zeros(len(batch.truncated_M))
    return np.where(batch.truncated_M, batch.x["bootstrap_M"], 0.0)
