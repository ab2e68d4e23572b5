"""Dynamic programming on the transition table of a tabular environment: its solver, and exact values of actions.

`table[s][a]` lists (probability, next state, reward, final).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from agentgym.errors import ConfigError

Table = Mapping[int, Mapping[int, list]]

MAX_SWEEPS = 100_000


@dataclass(frozen=True)
class Transitions:
    """A transition table as arrays of states by actions by branches."""

    probability: np.ndarray
    following: np.ndarray
    reward: np.ndarray
    goes_on: np.ndarray
    """1.0 where the next state is not final, else 0.0."""

    @classmethod
    def of(cls, table: Table) -> Transitions:
        states, actions = len(table), len(table[0])
        branches = max(len(outcomes) for row in table.values() for outcomes in row.values())
        chance, following, reward, goes_on = np.zeros((4, states, actions, branches))
        for s, row in table.items():
            for a, outcomes in row.items():
                for b, (p, s2, r, final) in enumerate(outcomes):
                    chance[s, a, b], following[s, a, b], reward[s, a, b], goes_on[s, a, b] = p, s2, r, not final
        return cls(chance, following.astype(int), reward, goes_on)

    def backup(self, value: np.ndarray, discount: float) -> np.ndarray:
        """float64[states, actions]: expected reward and discounted value of what follows."""
        return (self.probability * (self.reward + discount * self.goes_on * value[self.following])).sum(-1)


def best_actions(table: Table, discount: float = 0.999) -> np.ndarray:
    """int[states]: the action of greatest value."""
    transitions = Transitions.of(table)
    value, before = np.zeros(len(table)), None
    while before is None or np.abs(value - before).max() > 1e-9:
        before = value
        q = transitions.backup(value, discount)
        value = q.max(-1)
    return q.argmax(-1)


def optimal_values(table: Table, discount: float) -> np.ndarray:
    """float64[states, actions]: values of actions under an optimal policy, by value iteration."""
    return _fixed_point(Transitions.of(table), discount, lambda q: q.max(-1))


def policy_values(table: Table, policy: np.ndarray, discount: float) -> np.ndarray:
    """float64[states, actions]: values of actions if `policy`, probabilities of the same shape, acts after them."""
    return _fixed_point(Transitions.of(table), discount, lambda q: (policy * q).sum(-1))


def epsilon_greedy(q: np.ndarray, epsilon: float) -> np.ndarray:
    """float64[states, actions]: the best actions, ties alike; with probability `epsilon` any action."""
    best = q >= q.max(-1, keepdims=True) - 1e-9
    return (1 - epsilon) * best / best.sum(-1, keepdims=True) + epsilon / q.shape[-1]


def _fixed_point(transitions: Transitions, discount: float, value_of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    value = np.zeros(len(transitions.reward))
    for _ in range(MAX_SWEEPS):
        q = transitions.backup(value, discount)
        before, value = value, value_of(q)
        if np.abs(value - before).max() <= 1e-13 * max(1.0, np.abs(value).max()):
            return transitions.backup(value, discount)
    raise ConfigError(
        f"values at discount {discount:g} do not converge, for the policy may never end an episode: "
        "give a discount below 1"
    )
