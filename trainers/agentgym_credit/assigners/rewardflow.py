"""Credit from the graph of the states that a group visited: reward flows back along every edge that any member took."""

from __future__ import annotations

from typing import Literal

import numpy as np

from agentgym_credit.batch import Batch, Credit
from agentgym_credit.bounds import UnitInterval
from agentgym_credit.segments import named, standardize

ITERATIONS = 500
"""Passes over the graph, or as many as it has states where those are more: enough for any path. Only a cycle of
negative values and γ < 1 would go on for ever."""


def rewardflow(
    batch: Batch, *, omega: float = 1.0, gamma: UnitInterval = 0.95, norm: Literal["mean", "std"] = "mean"
) -> Credit:
    """The trajectory's advantage in its group plus the turn's value in the graph, among visits of the same state.

    V(s) = max(own(s), γ max over edges s → s' of V(s')), iterated until it stands;  own(s) = the largest reward of a
    turn at s;  F_t = max(r_t, γ V(s_{t+1})), or r_t at the last turn;  A_{i,t} = A_E(R_i) + ω A_S(F_t), both x − mean,
    or over (std + 1e-6) with norm="std".
    Feng et al. 2026 (RewardFlow, 2603.18859) as released ("decay"), which takes the reward of a state's first visit for
    its own; where only a success is rewarded, with 1, F_t is GraphGPO's γ^(distance to a success) of an edge
    (2605.26684). V is the best that any member found, not the mean: where the environment is random, luck counts as a
    way, and A_S is biased. Meant for rewards ≥ 0: an own reward of 0 hides a negative one.
    Population: of A_E the group's trajectories, each once; of A_S all turns of the group at the same state. K = 1: A_E
    is 0, repeated visits are compared. A lone visit or an unnamed state (−1): A_S is 0. Truncated: what was collected
    counts. All-equal rewards ≥ 0, given at the end: exactly 0 if γ = 1.
    """
    scale = norm == "std"
    node_N = named(batch.group_M[batch.traj_N], batch.anchor_N)
    after_N = gamma * np.roll(_flow(batch, node_N, gamma)[node_N], -1)
    flow_N = np.where(batch.last_N, batch.reward_N, np.maximum(batch.reward_N, after_N))
    episode_M = standardize(batch.return_M, batch.group_M, scale=scale)
    step_N = standardize(flow_N, node_N, scale=scale)
    return Credit((episode_M[batch.traj_N] + omega * step_N)[batch.turn_A])


def _flow(batch: Batch, node_N: np.ndarray, gamma: float) -> np.ndarray:
    """V of each node."""
    value = np.full(node_N.max(initial=-1) + 1, -np.inf)
    np.maximum.at(value, node_N, batch.reward_N)
    edge = np.flatnonzero(~batch.last_N)
    edge = edge[node_N[edge] != node_N[edge + 1]]  # staying where one is leads nowhere
    for _ in range(max(ITERATIONS, len(value))):
        before = value.copy()
        np.maximum.at(value, node_N[edge], gamma * before[node_N[edge + 1]])
        if np.array_equal(value, before):
            break
    return value
