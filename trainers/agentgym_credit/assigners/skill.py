"""Skill of what an assigner reads: how much of a batch's outcomes it explains, before it learns from them.

1 explains all, 0 nothing; less than nothing counts as 0. A term of the credit with `gate` is weighted by it, so that a
signal that knows nothing weighs nothing. Functions of (batch, all of the assigner's options).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agentgym_credit.assigners.gae import final_value_M
from agentgym_credit.batch import Batch
from agentgym_credit.segments import reverse_scan, success_pairs

REWARD_MODEL = frozenset({"prm_logit_M", "success_M"})
"""Columns that `of_reward_model` reads."""


def of_turn_values(batch: Batch, options: Mapping[str, Any]) -> float:
    """Explained variance of V before each turn: 1 − Σ (G_t − V_t)² / Σ (G_t − mean G)².

    G_t = Σ_k γ^k r_{t+k}, and V after a cut; γ = 1 where the assigner has no such option. Unlike the variance of G − V,
    this counts a constant error of V, too.
    """
    return _explained(_returns(batch, options.get("gamma", 1.0)), batch.x["value_N"])


def of_token_values(batch: Batch, options: Mapping[str, Any]) -> float:
    """The same of V before each turn's first token, discounted by turns (`gamma_turn`, or 1 where γ is of tokens)."""
    return _explained(_returns(batch, options.get("gamma_turn", 1.0)), batch.x["value_A"][batch.first_A])


def of_reward_model(batch: Batch, options: Mapping[str, Any]) -> float:
    """D² of the order of every success and failure of a group, D = P(s⁺ > s⁻) − P(s⁺ < s⁻), times the share of
    trajectories whose group has both; 0 where D is below 0.

    s is the model's logit of success. D (Somers') is 0 of a coin and 1 of a model that always puts the success first;
    its square is the share of the variance of "which of the two succeeded" that the order explains. A coin has some
    .1 with three successes and five failures. Only the order counts: a loss with a small β leaves p near ½, and a
    Brier score near a coin's, where the order is right already. Groups that end alike show nothing, and the outcome's
    own advantage is 0 in them: without the share a term of constant size outweighs it where nearly all succeed.
    """
    won, lost = success_pairs(batch.group_M, batch.x["success_M"])
    if not len(won):
        return 0.0
    logit_M = batch.x["prm_logit_M"]
    mixed = float(np.isin(batch.group_M, batch.group_M[won]).mean())
    return mixed * max(0.0, float(np.sign(logit_M[won] - logit_M[lost]).mean())) ** 2


def _returns(batch: Batch, gamma: float) -> np.ndarray:
    after_N = np.where(batch.last_N, gamma * final_value_M(batch)[batch.traj_N], 0.0)
    return reverse_scan(batch.reward_N + after_N, batch.traj_N, gamma)


def _explained(return_N: np.ndarray, value_N: np.ndarray) -> float:
    spread = float(((return_N - return_N.mean()) ** 2).sum()) if len(return_N) else 0.0
    return max(0.0, 1 - float(((return_N - value_N) ** 2).sum()) / spread) if spread > 0 else 0.0
