"""Defects found in published implementations: the numbers of the defect where we can show them, and ours."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from agentgym_trainers.batch import Batch, Credit
from agentgym_trainers.credit.gae import bilevel_gae, token_gae, turn_gae
from agentgym_trainers.credit.gigpo import gigpo
from agentgym_trainers.credit.group import dr_grpo, grpo, reinforce, rloo
from agentgym_trainers.credit.segments import reverse_scan, segment_mean, segment_std, standardise
from agentgym_trainers.testing import b6, t4, toy_batch

# D1: turn ends inferred from reward ≠ 0


@pytest.mark.parametrize("first_reward", [0.0, 1e-9])
def test_d1_a_turn_of_reward_zero_stays_a_turn(first_reward: float) -> None:
    batch = toy_batch([[first_reward, 1]], tokens=3, value_A=(0.1, 0.2, 0.3, 0.6, 0.7, 0.8))
    credit = bilevel_gae(batch, gamma_turn=0.95, lam_turn=1, lam=1)
    assert credit.advantage_A[:3] == pytest.approx((0.85, 0.75, 0.65))  # (.9, .8, .7) where the turn is lost


@pytest.mark.parametrize("rewards", [(0, 0, 0), (1, 0, 0), (0, 1, 0)])
def test_d1_last_or_all_rewards_zero(rewards) -> None:
    advantage_A = bilevel_gae(b6(rewards)).advantage_A
    nudged_A = bilevel_gae(b6([reward + 1e-9 for reward in rewards])).advantage_A
    assert advantage_A == pytest.approx(nudged_A, abs=1e-8)


def test_d1_b6_is_not_flat_token_gae() -> None:
    flat = token_gae(b6(), gamma=1, lam=0.5).advantage_A
    assert flat == pytest.approx((0.24375, 0.2875, 0.175, 0.15, 0.3, 0.4))  # what the defect turns bi-level into
    assert bilevel_gae(b6(), gamma_turn=0.9, lam_turn=0.5, lam=0.5).advantage_A != pytest.approx(flat)


# D2: observation tokens in the recursion


def test_d2_observation_tokens_cannot_enter() -> None:
    """Eight tokens of V = .1 … .8, the fourth and fifth an observation: the batch has no entry for them."""
    batch = toy_batch([[0, 1]], tokens=3, value_A=(0.1, 0.2, 0.3, 0.6, 0.7, 0.8))
    oracle = (0.7877, 0.7239, 0.6567, 0.3755, 0.2900, 0.2000)
    assert token_gae(batch, gamma=1, lam=0.95).advantage_A == pytest.approx(oracle, abs=5.1e-5)

    everything = toy_batch([[1]], tokens=8, value_A=np.arange(1, 9) / 10)
    defect = token_gae(everything, gamma=1, lam=0.95).advantage_A
    assert defect[:3] == pytest.approx((0.743, 0.677, 0.607), abs=5.1e-4)


# D6: group statistics over turns


def row_weighted(batch: Batch, *, scale: bool = False) -> Credit:
    """The group's mean and std over step rows, so a trajectory counts as often as it has turns."""
    group_N, return_N = batch.group_M[batch.traj_N], batch.return_M[batch.traj_N]
    return Credit(standardise(return_N, group_N, scale=scale)[batch.turn_A])


def test_d6_t4() -> None:
    batch = t4()
    step_A = gigpo(batch).advantage_A - gigpo(batch, omega=0).advantage_A
    lose = (-0.917670, -0.771212, -0.454545)
    released = row_weighted(batch).advantage_A + step_A
    assert released == pytest.approx((0.984829, 1.178788, 0.545455, *lose, 1.032330, 0.545455, *lose), abs=1e-6)
    assert gigpo(batch).advantage_A[:3] == pytest.approx((0.939375, 1.133333, 0.5), abs=1e-6)

    step_std_A = gigpo(batch, norm="std").advantage_A - grpo(batch).advantage_A
    released_std = row_weighted(batch, scale=True).advantage_A + step_std_A
    assert released_std[:3] == pytest.approx((1.865536, 2.199162, 1.044464), abs=1e-5)


def expected_gradient(assign, p: float, size: int, long: list[float], short: list[float]) -> float:
    """E Σ_i A_{i,0} ∂log π(a_i) / ∂logit / size, over all groups: the first action is "long" with probability p."""
    total = 0.0
    for actions in product((1, 0), repeat=size):
        batch = toy_batch([long if action else short for action in actions])
        first_N = np.append(True, np.diff(batch.traj_N) != 0)
        chance = np.prod([p if action else 1 - p for action in actions])
        total += chance * np.mean(assign(batch).advantage_A[first_N] * (np.array(actions) - p))
    return total


@pytest.mark.parametrize(("length", "scale"), [(2, 0.611), (5, 0.560), (20, 0.524)])
def test_d6_row_weighting_biases_by_length(length: int, scale: float) -> None:
    success, failure, truth = [0.0] * (length - 1) + [1.0], [0.0], 0.3 * 0.7
    assert expected_gradient(row_weighted, 0.3, 3, success, failure) / truth == pytest.approx(scale, abs=5.1e-4)
    assert expected_gradient(dr_grpo, 0.3, 3, success, failure) / truth == pytest.approx(2 / 3)
    assert expected_gradient(rloo, 0.3, 3, success, failure) / truth == pytest.approx(1)


# D7: statistics per turn index


def per_turn_index(batch: Batch) -> Credit:
    """Each turn's reward standardised among the turns of the same index, then summed over the trajectory."""
    position_N = np.arange(len(batch.traj_N)) - np.searchsorted(batch.traj_N, batch.traj_N)
    mean, std = segment_mean(batch.reward_N, position_N), segment_std(batch.reward_N, position_N, 1)
    standard_N = (batch.reward_N - mean[position_N]) / (std[position_N] + 1e-6)
    return Credit(np.bincount(batch.traj_N, standard_N)[batch.traj_A])


def reward_to_go_minus_mean(batch: Batch) -> Credit:
    to_go_N = reverse_scan(batch.reward_N, batch.traj_N, 1.0)
    mean_G = segment_mean(batch.return_M, batch.group_M)
    return Credit((to_go_N - mean_G[batch.group_M[batch.traj_N]])[batch.turn_A])


@pytest.mark.parametrize(
    ("assign", "gradient"),
    [(per_turn_index, 0.0), (reward_to_go_minus_mean, 0.14), (dr_grpo, 0.14), (rloo, 0.21), (reinforce, 0.21)],
)
def test_d7_a_turn_that_only_some_reach(assign, gradient: float) -> None:
    """Going on has probability .3 and leads to one more turn, of reward 1: the true gradient is .3 · .7."""
    assert expected_gradient(assign, 0.3, 3, [0.0, 1.0], [0.0]) == pytest.approx(gradient, abs=1e-12)


# Others


def test_d12_d13_all_rewards_count_and_reach_every_turn() -> None:
    batch = toy_batch([[1, 0, 0], [0, 0, 0]], tokens=2)
    for assign in (rloo, grpo, dr_grpo, reinforce):
        advantage_A = assign(batch).advantage_A
        assert np.all(advantage_A[:6] == advantage_A[0])
        assert advantage_A[0] > 0


def test_d5_bootstrap_is_of_the_final_observation() -> None:
    batch = toy_batch([[0, 0]], truncated=[True], value_N=(0.5, 0.25), bootstrap_M=[0.75])
    assert turn_gae(batch, gamma=1, lam=0).advantage_A == pytest.approx((-0.25, 0.5))
