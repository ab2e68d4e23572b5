"""Credit from the states that a group's attempts share, against walks over those attempts one by one."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from agentgym_credit.assigners.gagpo import gagpo
from agentgym_credit.assigners.gigpo import gigpo
from agentgym_credit.assigners.rewardflow import rewardflow
from agentgym_trainers.testing import toy_batch


def walks(seed: int, count: int = 6) -> tuple[list[list[int]], list[float]]:
    """Attempts over five states, each from state 0, and whether each succeeds."""
    rng = np.random.default_rng(seed)
    states = [[0, *rng.integers(0, 5, rng.integers(0, 6)).tolist()] for _ in range(count)]
    return states, rng.integers(0, 2, count).astype(float).tolist()


def batch_of(states: list[list[int]], won: list[float]):
    rewards = [[0.0] * (len(path) - 1) + [end] for path, end in zip(states, won, strict=True)]
    return toy_batch(rewards, groups=[0] * len(states), anchors=[state for path in states for state in path])


@pytest.mark.parametrize("seed", range(20))
def test_gagpo_sums_surprises_of_mean_returns(seed: int) -> None:
    states, won = walks(seed)
    gamma, lam, visits = 0.9, 0.7, {}
    for path, end in zip(states, won, strict=True):
        for t, state in enumerate(path):
            visits.setdefault(state, []).append(end * gamma ** (len(path) - 1 - t))
    value = {state: sum(all_) / len(all_) for state, all_ in visits.items()}
    expected = []
    for path, end in zip(states, won, strict=True):
        surprise = [
            (gamma * value[path[t + 1]] if t + 1 < len(path) else end) - value[state] for t, state in enumerate(path)
        ]
        for t in range(len(path)):
            expected.append(sum((gamma * lam) ** (k - t) * surprise[k] for k in range(t, len(path))))
    found = gagpo(batch_of(states, won), gamma=gamma, lam=lam).advantage_A
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_gagpo_without_its_lambda_is_half_of_gigpo(seed: int) -> None:
    batch = batch_of(*walks(seed))
    turns = gigpo(batch, gamma=0.9).advantage_A - gigpo(batch, omega=0).advantage_A
    np.testing.assert_allclose(gagpo(batch, gamma=0.9, lam=1.0).advantage_A, turns, atol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_rewardflow_is_the_distance_to_a_success(seed: int) -> None:
    """GraphGPO's credit: γ to the power of the shortest way from the next state to a success, along anyone's steps."""
    states, won = walks(seed)
    back: dict[object, set[int]] = {}
    for path, end in zip(states, won, strict=True):
        for state, after in zip(path, [*path[1:], "success" if end else "failure"], strict=True):
            back.setdefault(after, set()).add(state)
    distance: dict[object, int] = {"success": 0}
    queue: deque[object] = deque(["success"])
    while queue:
        after = queue.popleft()
        for state in back.get(after, ()):
            if state not in distance:
                distance[state] = distance[after] + 1
                queue.append(state)
    worth = [
        [0.9 ** distance[after] if after in distance else 0.0 for after in [*path[1:], "success" if end else "failure"]]
        for path, end in zip(states, won, strict=True)
    ]
    flat = [(state, x) for path, row in zip(states, worth, strict=True) for state, x in zip(path, row, strict=True)]
    expected = [x - np.mean([other for where, other in flat if where == state]) for state, x in flat]
    batch = batch_of(states, won)
    found = rewardflow(batch, gamma=0.9).advantage_A - rewardflow(batch, omega=0).advantage_A
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_rewardflow_reaches_the_first_of_many_turns() -> None:
    """A success 700 states away is one all the same; a fixed number of passes did not carry it back so far."""
    found = rewardflow(batch_of([list(range(700)), [0]], [1.0, 0.0]), gamma=1.0).advantage_A
    assert found[[0, -1]].tolist() == [1.0, -1.0]
