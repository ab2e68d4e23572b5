"""Laws that every entry of ASSIGNERS keeps, on random batches of unequal groups, lengths and turns.

Where a method does not keep one, the table of exceptions below says so and why.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_credit.assigners.gigpo import gigpo
from agentgym_credit.assigners.hgpo import hgpo
from agentgym_credit.assigners.implicit import prime
from agentgym_credit.assigners.reward_to_go import rtg_loo
from agentgym_credit.assigners.rewardflow import rewardflow
from agentgym_credit.batch import Batch, Credit
from agentgym_credit.segments import standardize
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.testing import VALUE_COLUMNS, random_batch, random_columns, reorder, toy_batch

NAMES = list(ASSIGNERS)
GROUPED = [name for name in NAMES if "groups" in ASSIGNERS[name].needs]
TOKEN_LEVEL = {"token_gae", "bilevel_gae", "prime", "prm_tokens"}
"""Credit may differ between the tokens of a turn."""
OF_THE_BATCH = {
    "prime": {"variant": "paper"},  # the released one is scaled by the largest sum in the batch
}
"""A statistic of the whole batch is part of the definition; without it the law holds."""
NOT_BASELINED = {
    "reinforce": "there is no baseline",
    "outcome": "there is no baseline: the objective's pairs and groups cancel it",
    "filtered": "a weight of 0 or 1, to imitate",
    "digirl": "the last turn's advantage is the return itself",
}
"""Shifting rewards and equal rewards: these use raw rewards."""
EVEN_LENGTHS = {
    "rtg_loo": "an episode that is over gets 0, not the shift; the noise that this adds has mean 0",
    "mt_grpo": "a turn is compared with those of its index: the last turns of unequal episodes are not",
}
"""Shifted and equal rewards give nothing only among episodes of equal length."""
NOT_LINEAR = {"rewardflow": "V is the larger of a state's own reward, which may be 0, and what follows"}
"""A shift changes credit; equal rewards give none where they are ≥ 0."""
SCALE_FREE = {
    "grpo": "over the standard deviation",
    "mt_grpo": "over the standard deviation",
    "critical": "over the standard deviation",
    "istar": "over the standard deviation",
    "filtered": "a weight of 0 or 1",
    "digiq": "a weight of 0 or 1",
}
"""Scaling: credit stays as it is; all others' scales with rewards and values."""
IN_UNITS_OF_REWARD = {
    "loop": {"drop_below": 0.0},  # a threshold in units of reward
    "digiq": {"threshold": 0.0},  # the same
    "prime": {"variant": "paper"},  # the released process reward is scale-free, the outcome is not
    "beacon": {"omega": 0.0},  # a milestone pays 1, whatever a reward is
    "spae": {"xi": 0.0},  # what is known of an answer has no unit
}
"""Credit scales with these options."""
ALONE = {
    "beacon": "the turns of the one trajectory are compared",
    "grpo": "raw return, as released",
    "istar": "the turns of the one trajectory are compared",
    "prm_turns": "the turns of the one trajectory are compared",
    "spae": "the turns of the one trajectory are compared",
}
"""What a group of one gets, where it is not 0."""

many = settings(deadline=None, derandomize=True, database=None, max_examples=25)
seeds = st.integers(0, 2**32 - 1)
numbers = st.floats(-10, 10, width=32)


def batch_of(seed: int, **options) -> Batch:
    return random_batch(np.random.default_rng(seed), **options)


def undiscounted(name: str) -> Callable[[Batch], Credit]:
    """With every γ option at 1: a discount turns equal rewards at unequal times into unequal returns."""
    gammas = [option for option in inspect.signature(ASSIGNERS[name].function).parameters if "gamma" in option]
    return lambda batch: ASSIGNERS[name].function(batch, **dict.fromkeys(gammas, 1.0))


def add_at_the_end(batch: Batch, c_M: np.ndarray) -> Batch:
    """c more for each trajectory, at its last turn, and every column of values says so."""
    at = {"M": c_M, "N": c_M[batch.traj_N], "A": c_M[batch.traj_A]}
    values = {name: batch.x[name] + at[name[-1]] for name in VALUE_COLUMNS}
    values["mc_after_N"] = batch.x["mc_after_N"] + np.where(batch.last_N, 0.0, at["N"])  # after it there is no more
    last_role_N = batch.x["role_N"][batch.last_N][batch.traj_N]  # whose turn the last one is gets it
    values["role_baseline_N"] = batch.x["role_baseline_N"] + np.where(batch.x["role_N"] == last_role_N, at["N"], 0.0)
    reward_N = batch.reward_N + np.where(batch.last_N, at["N"], 0.0)
    return replace(batch, reward_N=reward_N).with_columns(**values)


def of_nothing(batch: Batch) -> Batch:
    """No reward, no truncation, values of 0, no milestone, and models that see no difference."""
    silent = (*VALUE_COLUMNS, "prm_A", "answer_prob_N", "answer_conf_N", "reached_N")
    known = {name: np.zeros_like(batch.x[name]) for name in silent}
    return replace(
        batch, reward_N=np.zeros(len(batch.traj_N)), truncated_M=np.zeros(len(batch.group_M), bool)
    ).with_columns(**known)


@pytest.mark.parametrize("name", NAMES)
def test_contract(name: str) -> None:
    """A float64 number a token, no input written to, no column read that `needs` leaves out, options typed."""
    assigner, batch = ASSIGNERS[name], batch_of(1)
    columns = {column: values for column, values in batch.x.items() if column in assigner.needs_with({})}
    batch = replace(batch, x=columns)
    if "anchors" not in assigner.needs:
        batch = replace(batch, anchor_N=np.full(len(batch.anchor_N), -1))
    for array in (batch.group_M, batch.traj_N, batch.reward_N, batch.turn_A, batch.truncated_M, *columns.values()):
        array.setflags(write=False)
    credit = assigner.function(batch)
    assert credit.advantage_A.dtype == np.float64
    assert credit.advantage_A.shape == batch.turn_A.shape
    assert credit.targets.keys() == assigner.needs & {"value_N", "value_A"}
    assert all(target.shape == batch.x[column].shape for column, target in credit.targets.items())
    batch_parameter, *options = inspect.signature(assigner.function).parameters.values()
    assert batch_parameter.name == "batch"
    assert all(option.kind is option.KEYWORD_ONLY for option in options)
    assert get_type_hints(assigner.function).keys() == {"batch", "return", *(option.name for option in options)}
    assert assigner.description


@pytest.mark.parametrize("name", NAMES)
@many
@given(seed=seeds)
def test_permuting_trajectories_and_groups_permutes_credit(name: str, seed: int) -> None:
    batch, assign = batch_of(seed), ASSIGNERS[name].function
    rng = np.random.default_rng(seed)
    permuted, old_N, old_A = reorder(batch, rng.permutation(len(batch.group_M)))
    permuted = replace(permuted, group_M=rng.permutation(permuted.group_M.max() + 1)[permuted.group_M])
    before, after = assign(batch), assign(permuted)
    assert after.advantage_A == pytest.approx(before.advantage_A[old_A], abs=1e-9)
    for column, target in after.targets.items():
        assert target == pytest.approx(before.targets[column][old_N if column == "value_N" else old_A], abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
@many
@given(seed=seeds)
def test_other_groups_in_the_batch_change_nothing(name: str, seed: int) -> None:
    batch, assign = batch_of(seed), partial(ASSIGNERS[name].function, **OF_THE_BATCH.get(name, {}))
    expected = assign(batch).advantage_A
    for group in np.unique(batch.group_M):
        part, _, old_A = batch.select(np.flatnonzero(batch.group_M == group))
        assert assign(part).advantage_A == pytest.approx(expected[old_A], abs=1e-9)


def test_batch_statistics_do_depend_on_other_groups() -> None:
    batch = batch_of(0, group_size=3)
    part, _, old_A = batch.select(np.flatnonzero(batch.group_M == 0))
    assert prime(part).advantage_A != pytest.approx(prime(batch).advantage_A[old_A], abs=1e-3)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in TOKEN_LEVEL])
@many
@given(seed=seeds)
def test_turn_credit_does_not_depend_on_number_of_tokens(name: str, seed: int) -> None:
    """Only on the sum of what a reward model or a reference says of them."""
    batch, assign = batch_of(seed), ASSIGNERS[name].function
    sums = {k: np.bincount(batch.turn_A, batch.x[k]) for k in ("prm_A", "prox_logprob_A", "ref_logprob_A")}
    first = {k: column[batch.first_A] if k.endswith("_A") else column for k, column in batch.x.items()}
    turns = np.arange(len(batch.traj_N))
    lean = replace(batch, turn_A=turns, logprob_A=batch.logprob_A[batch.first_A], x=first | sums)
    thick, thin = assign(batch), assign(lean)
    assert np.array_equal(thick.advantage_A, thin.advantage_A[batch.turn_A])
    for column, target in thick.targets.items():
        assert target == pytest.approx(thin.targets[column], abs=1e-12)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_BASELINED | NOT_LINEAR])
@many
@given(seed=seeds, c=numbers)
def test_shifting_a_groups_rewards_changes_nothing(name: str, seed: int, c: float) -> None:
    """By another constant for each group; values shift along."""
    batch, assign = batch_of(seed, group_size=3, length=3 if name in EVEN_LENGTHS else None), undiscounted(name)
    batch = replace(batch, truncated_M=np.zeros(len(batch.group_M), bool))
    shifted = add_at_the_end(batch, c * (1 + batch.group_M))
    assert assign(shifted).advantage_A == pytest.approx(assign(batch).advantage_A, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", [*NOT_BASELINED, *EVEN_LENGTHS, *NOT_LINEAR])
def test_assigners_of_equal_lengths_need_equal_lengths(name: str) -> None:
    batch, assign = batch_of(4, group_size=3), undiscounted(name)
    batch = replace(batch, truncated_M=np.zeros(len(batch.group_M), bool))
    shifted = add_at_the_end(batch, np.full(len(batch.group_M), 5.0))
    if name == "filtered":
        assign = partial(ASSIGNERS[name].function, keep="threshold")
    assert assign(shifted).advantage_A != pytest.approx(assign(batch).advantage_A, abs=1e-3)


def test_assigners_of_raw_rewards_do_shift() -> None:
    assert ASSIGNERS["reinforce"].function(toy_batch([[1.0], [2.0]])).advantage_A.tolist() == [1, 2]


@pytest.mark.parametrize("name", NAMES)
@many
@given(seed=seeds, c=st.floats(0.125, 8))
def test_scaling_rewards_and_values_scales_credit(name: str, seed: int, c: float) -> None:
    batch = batch_of(seed, group_size=3)
    assign = partial(ASSIGNERS[name].function, **IN_UNITS_OF_REWARD.get(name, {}))
    columns = {column: c * batch.x[column] for column in (*VALUE_COLUMNS, "prm_A")}
    scaled = replace(batch, reward_N=c * batch.reward_N).with_columns(**columns)
    if name in SCALE_FREE:
        assert assign(scaled).advantage_A == pytest.approx(assign(batch).advantage_A, rel=1e-3, abs=1e-3)
    else:
        assert assign(scaled).advantage_A == pytest.approx(c * assign(batch).advantage_A, rel=1e-3, abs=1e-9)


@many
@given(seed=seeds, c=st.floats(0.125, 8))
def test_gigpo_over_std_does_not_scale(seed: int, c: float) -> None:
    batch = batch_of(seed, group_size=3)
    scaled = replace(batch, reward_N=c * batch.reward_N)
    assert gigpo(scaled, norm="std").advantage_A == pytest.approx(
        gigpo(batch, norm="std").advantage_A, rel=1e-3, abs=1e-3
    )


@pytest.mark.parametrize("name", NAMES)
def test_nan_elsewhere_does_not_leak(name: str) -> None:
    """The final value of a trajectory that ended, and columns of other assigners."""
    batch, assigner = batch_of(2), ASSIGNERS[name]
    planted = {
        column: np.where(batch.truncated_M, values, np.nan)
        if column == "bootstrap_M"
        else (values if column in assigner.needs_with({}) else np.full(values.shape, np.nan))
        for column, values in batch.x.items()
    }
    assert np.array_equal(
        assigner.function(batch.with_columns(**planted)).advantage_A, assigner.function(batch).advantage_A
    )


@pytest.mark.parametrize("name", NAMES)
@many
@given(seed=seeds)
def test_credit_of_a_group_of_one(name: str, seed: int) -> None:
    batch = replace(batch_of(seed, group_size=1), anchor_N=np.arange(len(batch_of(seed, group_size=1).anchor_N)))
    advantage_A = ASSIGNERS[name].function(batch).advantage_A
    assert np.all(np.isfinite(advantage_A))
    if name == "grpo":
        assert advantage_A == pytest.approx(batch.return_M[batch.traj_A], rel=2e-6)
    elif name in GROUPED:
        assert bool(advantage_A.any()) <= (name in ALONE)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_BASELINED])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -1 / 3, 1e6])
def test_equal_rewards_give_exactly_zero_credit(name: str, reward: float) -> None:
    """If whatever else is read knows them."""
    batch = of_nothing(batch_of(3, group_size=3, length=3 if name in EVEN_LENGTHS else None))
    equal = add_at_the_end(batch, np.full(len(batch.group_M), reward))
    assert not undiscounted(name)(equal).advantage_A.any() or (name in NOT_LINEAR and reward < 0)


@pytest.mark.parametrize("name", NAMES)
def test_credit_of_an_empty_batch(name: str) -> None:
    none = toy_batch([], tokens=0, **random_columns(np.random.default_rng(0), 0, 0, 0))
    assert ASSIGNERS[name].function(none).advantage_A.shape == (0,)


@pytest.mark.parametrize("name", NAMES)
def test_final_value_counts_if_and_only_if_truncated(name: str) -> None:
    """In advantages or in targets."""

    def credit(truncated: bool, final: float) -> np.ndarray:
        columns = random_columns(np.random.default_rng(0), 1, 3, 3)
        batch = toy_batch([[0, 0, 0]], truncated=[truncated], **columns)
        result = ASSIGNERS[name].function(batch.with_columns(bootstrap_M=np.array([final])))
        return np.concatenate([result.advantage_A, *result.targets.values()])

    assert np.array_equal(credit(False, 0.7), credit(False, -5.0))
    assert np.array_equal(credit(False, 0.7), credit(True, 0.0))
    changed = not np.array_equal(credit(True, 0.7), credit(True, 0.0))
    assert changed == ("bootstrap_M" in ASSIGNERS[name].needs)


@many
@given(seed=seeds)
def test_gigpo_against_brute_force(seed: int) -> None:
    batch = batch_of(seed, group_size=3)
    turns = range(len(batch.traj_N))
    to_go = [
        sum(0.9 ** (k - t) * batch.reward_N[k] for k in turns if k >= t and batch.traj_N[k] == batch.traj_N[t])
        for t in turns
    ]
    key = [(batch.group_M[batch.traj_N[t]], batch.anchor_N[t]) for t in turns]
    step = [0.0 if key[t][1] < 0 else to_go[t] - np.mean([to_go[k] for k in turns if key[k] == key[t]]) for t in turns]
    result_A = gigpo(batch, gamma=0.9).advantage_A - gigpo(batch, omega=0).advantage_A
    assert result_A == pytest.approx(np.array(step)[batch.turn_A], abs=1e-9)


@many
@given(seed=seeds)
def test_hgpo_against_brute_force(seed: int) -> None:
    batch = batch_of(seed, group_size=3)
    turns = range(len(batch.traj_N))
    group, traj, anchor = batch.group_M[batch.traj_N], batch.traj_N, batch.anchor_N
    to_go = [sum(0.9 ** (k - t) * batch.reward_N[k] for k in turns if k >= t and traj[k] == traj[t]) for t in turns]

    def context(t: int, level: int) -> tuple | None:
        way = [k for k in range(t - level, t + 1) if k >= 0 and traj[k] == traj[t] and anchor[k] >= 0]
        return (group[t], *anchor[way]) if len(way) == level + 1 else None

    expected = []
    for t in turns:
        total = weight = 0.0
        for level in range(3):
            same = [to_go[k] for k in turns if context(k, level) == context(t, level)]
            if context(t, level) is not None and abs(gap := to_go[t] - np.mean(same)) > 1e-9:
                total, weight = total + (level + 1) * gap, weight + level + 1
        expected.append(total / weight if weight else 0.0)
    assert hgpo(batch, gamma=0.9).advantage_A == pytest.approx(np.array(expected)[batch.turn_A], abs=1e-9)


def test_hgpo_takes_no_rounding_for_a_difference() -> None:
    """Two turns differ by their history alone, by the last bit of a large return: that level says nothing."""
    big = 1e8 / 3
    batch = toy_batch([[0, big], [0, np.nextafter(big, 0)], [0, big / 2]], anchors=[0, 1, 0, 1, 2, 1])
    # Level 0 compares all three at state 1; level 1 the two that came from state 0, which are equal.
    level_N = standardize(np.array([big, big, big / 2]), np.zeros(3, int), ddof=0)
    credit_N = hgpo(batch, norm="std", history=1, gamma=1.0).advantage_A[batch.first_A]
    assert credit_N[[1, 3, 5]] == pytest.approx(level_N, rel=1e-6)


@many
@given(seed=seeds)
def test_rewardflow_against_brute_force(seed: int) -> None:
    """The best reward within reach of a turn, discounted by how many turns away it is: by distances, not values."""
    batch = batch_of(seed, group_size=3)
    batch = replace(batch, reward_N=np.abs(batch.reward_N))
    turns = range(len(batch.traj_N))
    state = [(batch.group_M[batch.traj_N[t]], a if (a := batch.anchor_N[t]) >= 0 else -1 - t) for t in turns]
    own = {s: max(batch.reward_N[t] for t in turns if state[t] == s) for s in state}
    edges = {(state[t], state[t + 1]) for t in turns if not batch.last_N[t]}

    def within_reach(start: tuple) -> dict[tuple, int]:
        """The states to be reached from one, and in how many turns."""
        distance, edge = {start: 0}, [start]
        for far in itertools.count(1):
            edge = list({b for a, b in edges if a in edge and b not in distance})
            distance |= dict.fromkeys(edge, far)
            if not edge:
                return distance

    def best(t: int) -> float:
        later = {} if batch.last_N[t] else within_reach(state[t + 1])
        return max([batch.reward_N[t], *(0.9 ** (1 + far) * own[s] for s, far in later.items())])

    flow = [best(t) for t in turns]
    step = [flow[t] - np.mean([flow[k] for k in turns if state[k] == state[t]]) for t in turns]
    result_A = rewardflow(batch, gamma=0.9).advantage_A - rewardflow(batch, omega=0).advantage_A
    assert result_A == pytest.approx(np.array(step)[batch.turn_A], abs=1e-9)


@many
@given(seed=seeds)
def test_rtg_loo_against_brute_force(seed: int) -> None:
    batch = batch_of(seed)
    rewards = [batch.reward_N[batch.traj_N == m] for m in range(len(batch.group_M))]
    expected = []
    for m, turns in enumerate(rewards):
        others = [r for j, r in enumerate(rewards) if j != m and batch.group_M[j] == batch.group_M[m]]
        for t in range(len(turns)):
            expected.append(turns[t:].sum() - np.mean([r[t:].sum() for r in others]) if others else 0.0)
    assert rtg_loo(batch).advantage_A == pytest.approx(np.array(expected)[batch.turn_A], abs=1e-9)
