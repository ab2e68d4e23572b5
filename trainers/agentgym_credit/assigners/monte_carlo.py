"""Credit from playing on: the value of every state measured by fresh continuations from a snapshot."""

from __future__ import annotations

from agentgym_credit.batch import Batch, Credit
from agentgym_credit.bounds import UnitInterval


def mc_branch(batch: Batch, *, gamma: UnitInterval = 1.0) -> Credit:
    """The reward plus what continuations got after the turn, minus what they got before it. Unbiased, and expensive.

    A_t = r_t + γ V̂(s_{t+1}) − V̂(s_t), V̂ the mean return of continuations played from the state; 0 after the end.
    Kazemnejad et al. 2024 (VinePPO, 2410.01679). The continuations are independent of the turn, so the estimator
    is unbiased whatever their number; they add variance Var(R)/n a state.
    Population: the continuations of each state. K = 1: the same. Truncated: a limit ends continuations as it ended the
    episode, so that mc_after_N is 0 after it, and V is of what is collected within the limit. All-equal rewards:
    exactly 0.
    """
    return Credit((batch.reward_N + gamma * batch.x["mc_after_N"] - batch.x["mc_value_N"])[batch.turn_A])
