"""The solver of tabular environments: value iteration over their transition table."""

from __future__ import annotations

import numpy as np


def best_actions(table: dict[int, dict[int, list]], discount: float = 0.999) -> np.ndarray:
    """int[states]: the action of greatest value. `table[s][a]` lists (probability, next state, reward, final)."""
    states, actions = len(table), len(table[0])
    branches = max(len(outcomes) for row in table.values() for outcomes in row.values())
    chance, following, reward, goes_on = np.zeros((4, states, actions, branches))
    for s, row in table.items():
        for a, outcomes in row.items():
            for b, (p, s2, r, final) in enumerate(outcomes):
                chance[s, a, b], following[s, a, b], reward[s, a, b], goes_on[s, a, b] = p, s2, r, not final
    nexts = following.astype(int)
    value, before = np.zeros(states), None
    while before is None or np.abs(value - before).max() > 1e-9:
        before = value
        q = (chance * (reward + discount * goes_on * value[nexts])).sum(-1)
        value = q.max(-1)
    return q.argmax(-1)
