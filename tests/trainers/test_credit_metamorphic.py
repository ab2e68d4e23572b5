"""Laws that every entry of ASSIGNERS keeps (G1 to G12), on random batches of unequal groups, lengths and turns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_trainers.batch import Batch, Credit
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.credit.gigpo import gigpo
from agentgym_trainers.testing import c3, random_batch, reorder, toy_batch

NAMES = list(ASSIGNERS)
CRITICS = [name for name in NAMES if ASSIGNERS[name].needs & {"value_N", "value_A"}]
GROUPED = [name for name in NAMES if "groups" in ASSIGNERS[name].needs]
TOKEN_LEVEL = [name for name in NAMES if "value_A" in ASSIGNERS[name].needs]

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
    return replace(batch, reward_N=batch.reward_N + np.where(batch.last_N, c_M[batch.traj_N], 0.0))


@pytest.mark.parametrize("name", NAMES)
def test_contract(name: str) -> None:
    """A float64 number a token, no input written to, no column read that `needs` leaves out, options typed."""
    assigner, batch = ASSIGNERS[name], batch_of(1)
    columns = {column: values for column, values in batch.x.items() if column in assigner.needs}
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
def test_g1_permuting_trajectories_and_groups_permutes_credit(name: str, seed: int) -> None:
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
def test_g2_other_groups_in_the_batch_change_nothing(name: str, seed: int) -> None:
    batch, assign = batch_of(seed), ASSIGNERS[name].function
    whole = assign(batch).advantage_A
    for group in np.unique(batch.group_M):
        part, _, old_A = batch.select(np.flatnonzero(batch.group_M == group))
        assert assign(part).advantage_A == pytest.approx(whole[old_A], abs=1e-9)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in TOKEN_LEVEL])
@many
@given(seed=seeds)
def test_g3_turn_credit_does_not_depend_on_the_number_of_tokens(name: str, seed: int) -> None:
    batch, assign = batch_of(seed), ASSIGNERS[name].function
    lean = replace(batch, turn_A=np.arange(len(batch.traj_N)), logprob_A=batch.logprob_A[batch.first_A])
    assert np.array_equal(assign(batch).advantage_A, assign(lean).advantage_A[batch.turn_A])


@pytest.mark.parametrize("name", [*GROUPED, *CRITICS])
@many
@given(seed=seeds, c=numbers)
def test_g4_shifting_a_groups_rewards_changes_nothing(name: str, seed: int, c: float) -> None:
    """By another constant for each group; a critic's values shift along."""
    batch, assign = batch_of(seed, group_size=3), undiscounted(name)
    c_M = c * (1 + batch.group_M)
    shifted = add_at_the_end(replace(batch, truncated_M=np.zeros(len(c_M), bool)), c_M).with_columns(
        value_N=batch.x["value_N"] + c_M[batch.traj_N], value_A=batch.x["value_A"] + c_M[batch.traj_A]
    )
    batch = replace(batch, truncated_M=shifted.truncated_M)
    assert assign(shifted).advantage_A == pytest.approx(assign(batch).advantage_A, rel=1e-4, abs=1e-4)


def test_g4_raw_rewards_do_shift() -> None:
    assert ASSIGNERS["reinforce"].function(toy_batch([[1.0], [2.0]])).advantage_A.tolist() == [1, 2]


@pytest.mark.parametrize("name", NAMES)
@many
@given(seed=seeds, c=st.floats(0.125, 8))
def test_g5_scaling_rewards_and_values_scales_credit(name: str, seed: int, c: float) -> None:
    batch, assign = batch_of(seed, group_size=3), ASSIGNERS[name].function
    scaled = replace(batch, reward_N=c * batch.reward_N, x={k: c * v for k, v in batch.x.items()})
    factor = 1.0 if name == "grpo" else c
    assert assign(scaled).advantage_A == pytest.approx(factor * assign(batch).advantage_A, rel=1e-3, abs=1e-9)


@many
@given(seed=seeds, c=st.floats(0.125, 8))
def test_g5_gigpo_over_std_does_not_scale(seed: int, c: float) -> None:
    batch = batch_of(seed, group_size=3)
    scaled = replace(batch, reward_N=c * batch.reward_N)
    assert gigpo(scaled, norm="std").advantage_A == pytest.approx(
        gigpo(batch, norm="std").advantage_A, rel=1e-3, abs=1e-3
    )


@pytest.mark.parametrize("name", NAMES)
def test_g6_nan_elsewhere_does_not_leak(name: str) -> None:
    """The final value of a trajectory that ended, and columns of other assigners."""
    batch, assigner = batch_of(2), ASSIGNERS[name]
    planted = {
        column: np.where(batch.truncated_M, values, np.nan)
        if column == "bootstrap_M"
        else (values if column in assigner.needs else np.full_like(values, np.nan))
        for column, values in batch.x.items()
    }
    assert np.array_equal(
        assigner.function(batch.with_columns(**planted)).advantage_A, assigner.function(batch).advantage_A
    )


@pytest.mark.parametrize("name", NAMES)
@many
@given(seed=seeds)
def test_g9_one_trajectory_a_group(name: str, seed: int) -> None:
    batch = replace(batch_of(seed, group_size=1), anchor_N=np.arange(len(batch_of(seed, group_size=1).anchor_N)))
    advantage_A = ASSIGNERS[name].function(batch).advantage_A
    assert np.all(np.isfinite(advantage_A))
    if name == "grpo":
        assert advantage_A == pytest.approx(batch.return_M[batch.traj_A], rel=2e-6)
    elif name in GROUPED:
        assert not advantage_A.any()


@pytest.mark.parametrize("name", [*GROUPED, *CRITICS])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -1 / 3, 1e6])
def test_g10_equal_rewards_give_exactly_nothing(name: str, reward: float) -> None:
    """Also a critic that knows them."""
    batch = batch_of(3, group_size=3)
    zero = replace(batch, reward_N=np.zeros(len(batch.reward_N)), truncated_M=np.zeros(len(batch.group_M), bool))
    equal = add_at_the_end(zero, np.full(len(batch.group_M), reward)).with_columns(
        value_N=np.full(len(batch.traj_N), reward), value_A=np.full(len(batch.turn_A), reward)
    )
    assert not undiscounted(name)(equal).advantage_A.any()


@pytest.mark.parametrize("name", NAMES)
def test_g11_no_tokens(name: str) -> None:
    none = toy_batch([], tokens=0, value_N=[], value_A=[], bootstrap_M=[])
    assert ASSIGNERS[name].function(none).advantage_A.shape == (0,)


@pytest.mark.parametrize("name", NAMES)
def test_g12_the_final_value_counts_if_and_only_if_truncated(name: str) -> None:
    def advantage_A(truncated: bool, final: float) -> np.ndarray:
        return ASSIGNERS[name].function(c3((0, 0, 0), truncated=[truncated], bootstrap_M=[final])).advantage_A

    assert np.array_equal(advantage_A(False, 0.7), advantage_A(False, -5.0))
    assert np.array_equal(advantage_A(False, 0.7), advantage_A(True, 0.0))
    changed = not np.array_equal(advantage_A(True, 0.7), advantage_A(True, 0.0))
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
