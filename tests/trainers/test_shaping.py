"""Shapers: published numbers, what each may and may not change, and the defects of released ones."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from typing import get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_credit.assigners.gae import token_gae, turn_gae
from agentgym_credit.assigners.group_baselines import reinforce
from agentgym_credit.batch import Batch
from agentgym_credit.segments import position, remaining, reverse_scan
from agentgym_trainers.data.reward_shaping import (
    SHAPERS,
    clip,
    delta,
    judge,
    overlong,
    potential,
    redistribute,
    spa,
    tool_bonus,
)
from agentgym_trainers.testing import (
    ORACLE_GRADIENT,
    SC,
    oracle_batch,
    oracle_gradient_M,
    oracle_trajectories,
    random_batch,
    random_columns,
    reorder,
    toy_batch,
)

NAMES = list(SHAPERS)

many = settings(deadline=None, derandomize=True, database=None, max_examples=25)
seeds = st.integers(0, 2**32 - 1)


def batch_of(seed: int) -> Batch:
    return random_batch(np.random.default_rng(seed))


# What every entry of SHAPERS owes


@pytest.mark.parametrize("name", NAMES)
def test_contract(name: str) -> None:
    """A new float64 number a turn, no input written to, no column read that `needs` leaves out, options typed."""
    shaper, batch = SHAPERS[name], batch_of(1)
    batch = replace(batch, x={column: values for column, values in batch.x.items() if column in shaper.needs})
    for array in (batch.reward_N, batch.traj_N, batch.turn_A, batch.truncated_M, *batch.x.values()):
        array.setflags(write=False)
    reward_N = shaper.function(batch)
    assert reward_N.dtype == np.float64
    assert reward_N.shape == batch.reward_N.shape
    assert np.all(np.isfinite(reward_N))
    batch_parameter, *options = inspect.signature(shaper.function).parameters.values()
    assert batch_parameter.name == "batch"
    assert all(option.kind is option.KEYWORD_ONLY for option in options)
    assert get_type_hints(shaper.function).keys() == {"batch", "return", *(option.name for option in options)}
    assert shaper.description.endswith(".")


@pytest.mark.parametrize("name", NAMES)
@many
@given(seed=seeds)
def test_permuting_trajectories_permutes_rewards(name: str, seed: int) -> None:
    batch, shaper = batch_of(seed), SHAPERS[name].function
    permuted, old_N, _ = reorder(batch, np.random.default_rng(seed).permutation(len(batch.group_M)))
    full_N = shaper(batch)
    assert shaper(permuted) == pytest.approx(full_N[old_N], abs=1e-12)
    part, kept_N, _ = batch.select(np.array([0]))
    assert shaper(part) == pytest.approx(full_N[kept_N], abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_no_turns(name: str) -> None:
    none = toy_batch([], tokens=0, **random_columns(np.random.default_rng(0), 0, 0, 0))
    assert SHAPERS[name].function(none).shape == (0,)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "spa"])
def test_it_adds_to_the_reward(name: str) -> None:
    """All but SPA's, whose head has learned the outcome."""
    batch = batch_of(2)
    more = replace(batch, reward_N=batch.reward_N + 5)
    assert SHAPERS[name].function(more) == pytest.approx(SHAPERS[name].function(batch) + 5)


# SPA-RL


def test_spa_numbers() -> None:
    """c = (.3, .2, .5), grounding of .5 where the action was executed."""
    batch = toy_batch([[0, 0, 7]], progress_c_N=(0.3, 0.2, 0.5), valid_N=(1, 0, 1), penalty_N=(0, 0, 0))
    assert spa(batch) == pytest.approx((0.8, 0.2, 1.0))
    assert spa(batch, alpha=2, beta=0) == pytest.approx((0.6, 0.4, 1.0))


def test_spa_keeps_the_penalty_of_an_invalid_action() -> None:
    batch = toy_batch([[0, -0.25, 7]], progress_c_N=(0.3, 0.2, 0.5), valid_N=(1, 0, 1), penalty_N=(0, 0.25, 0))
    assert spa(batch) == pytest.approx((0.8, -0.05, 1.0))


def test_redistribution_numbers() -> None:
    batch = toy_batch([[0, 0, 1], [0, 0.5]], progress_c_N=(0.3, 0.2, 0.5, 0.1, -0.4))
    assert redistribute(batch) == pytest.approx((0.3, 0.2, 0.5, 0.1, 0.4))
    assert redistribute(batch, alpha=2) == pytest.approx((0.6, 0.4, 0.0, 0.2, 0.3))


def test_what_the_head_does_not_explain_is_not_paid_ahead() -> None:
    batch = toy_batch([[0, 0, 1], [0, 0.5]], progress_c_N=(0.3, 0.2, 0.5, 0.1, -0.4), progress_skill_M=(0.25, 0.25))
    assert redistribute(batch, gate=True) == pytest.approx(redistribute(batch, alpha=0.25))
    nothing = batch.with_columns(progress_skill_M=np.zeros(2))
    assert redistribute(nothing, gate=True) == pytest.approx(batch.reward_N)


@many
@given(seed=seeds, gate=st.booleans())
def test_redistribution_keeps_every_return(seed: int, gate: bool) -> None:
    batch = batch_of(seed)
    assert np.bincount(batch.traj_N, redistribute(batch, gate=gate)) == pytest.approx(batch.return_M)


@many
@given(seed=seeds, lam=st.floats(0, 1))
def test_redistribution_is_nothing_to_a_critic_that_knows_it(seed: int, lam: float) -> None:
    """Values of the new rewards are lower by what was paid before: with gamma 1, GAE's advantages are the old ones."""
    batch = batch_of(seed)
    paid_N = np.cumsum(batch.x["progress_c_N"]) - batch.x["progress_c_N"]
    paid_N -= paid_N[position(batch.traj_N) == 0][batch.traj_N]
    shaped = replace(batch, reward_N=redistribute(batch)).with_columns(value_N=batch.x["value_N"] - paid_N)
    ours, plain = (turn_gae(one, gamma=1.0, lam=lam).advantage_A for one in (shaped, batch))
    assert ours == pytest.approx(plain, abs=1e-9)


def as_released(reward_N: np.ndarray, batch: Batch) -> np.ndarray:
    """The t-th of T scores times T − t − 1, counted from 0."""
    return reward_N * remaining(batch.traj_N)


def last_turn_matters(weigh) -> bool:
    """Whether another score of the last turn changes its advantage."""
    batch = toy_batch(
        [[0, 0, 0]], progress_c_N=(0.3, 0.2, 0.5), valid_N=(1, 1, 1), penalty_N=(0, 0, 0), value_N=(0, 0, 0)
    )
    better = batch.with_columns(progress_c_N=np.array([0.3, 0.2, 0.9]))
    low, high = (turn_gae(replace(b, reward_N=weigh(spa(b, beta=0), b))).advantage_A[-1] for b in (batch, better))
    return low != high


def test_spa_last_turn_counts() -> None:
    batch = toy_batch([[0, 0, 0]], progress_c_N=(0.3, 0.2, 0.5), valid_N=(1, 1, 1), penalty_N=(0, 0, 0))
    assert as_released(spa(batch, beta=0), batch) == pytest.approx((0.6, 0.2, 0))
    assert last_turn_matters(lambda reward_N, batch: reward_N)
    assert not last_turn_matters(as_released)


def test_spa_of_true_progress_telescopes() -> None:
    batch = oracle_batch(oracle_trajectories())
    total_M = np.bincount(batch.traj_N, spa(batch, beta=0))
    assert total_M == pytest.approx(batch.return_M - 0.1875)


# Potentials


def returns(batch: Batch, gamma: float = 1.0) -> np.ndarray:
    return reverse_scan(batch.reward_N, batch.traj_N, gamma)


def shaped(batch: Batch, **options: float) -> Batch:
    return replace(batch, reward_N=potential(batch, **options))


def test_potential_by_hand() -> None:
    batch = toy_batch([[0, 0, 1]], progress_N=(0.25, 0.5, 1.0))
    assert potential(batch).tolist() == [0.25, 0.25, 1 - 0.5]
    assert potential(batch, gamma=0.5) == pytest.approx((0.125, 0, 0.5))
    assert potential(batch, weight=2).tolist() == [0.5, 0.5, 0]
    cut = replace(batch, truncated_M=np.array([True]))
    assert potential(cut).tolist() == [0.25, 0.25, 1.5]


def test_potential_of_a_turn_that_reports_none() -> None:
    nan = np.nan
    batch = toy_batch([[0, 0, 0, 1], [0, 1]], progress_N=(nan, 0.5, nan, 1, nan, nan))
    assert potential(batch).tolist() == [0, 0.5, 0, 0.5, 0, 1]


@many
@given(seed=seeds, gamma=st.sampled_from([1.0, 0.9]))
def test_potential_changes_a_return_only_by_where_it_starts(seed: int, gamma: float) -> None:
    """G'_t = G_t − Φ(s_t), and after a cut + γ^H Φ(s_H): what a critic of the shaped rewards would add there."""
    batch = batch_of(seed)
    batch = batch.with_columns(progress_N=np.nan_to_num(batch.x["progress_N"], nan=0.5))
    changed_N = returns(shaped(batch, gamma=gamma), gamma) - returns(batch, gamma)
    progress_N = batch.x["progress_N"]
    before_N = np.where(np.append(True, np.diff(batch.traj_N) != 0), 0.0, np.roll(progress_N, 1))
    end_N = np.where(batch.truncated_M, progress_N[batch.last_N], 0.0)[batch.traj_N]
    discount_N = gamma ** (remaining(batch.traj_N) + 1)
    assert changed_N == pytest.approx(discount_N * end_N - before_N, abs=1e-9)


@many
@given(seed=seeds)
def test_potential_leaves_advantages_as_they_are(seed: int) -> None:
    """With the critic that shaped rewards have, V − Φ, cut episodes included."""
    batch = batch_of(seed)
    batch = batch.with_columns(progress_N=np.nan_to_num(batch.x["progress_N"], nan=0.5))
    progress_N = batch.x["progress_N"]
    before_N = np.where(np.append(True, np.diff(batch.traj_N) != 0), 0.0, np.roll(progress_N, 1))
    critic = {
        "value_N": batch.x["value_N"] - before_N,
        "value_A": batch.x["value_A"] - before_N[batch.turn_A],
        "bootstrap_M": batch.x["bootstrap_M"] - progress_N[batch.last_N],
    }
    for assign in (partial(turn_gae, gamma=0.9), partial(turn_gae, gamma=0.9, lam=0.0)):
        plain_A = assign(batch).advantage_A
        assert assign(shaped(batch, gamma=0.9).with_columns(**critic)).advantage_A == pytest.approx(plain_A, abs=1e-9)
    plain_A = token_gae(batch).advantage_A
    assert token_gae(shaped(batch).with_columns(**critic)).advantage_A == pytest.approx(plain_A, abs=1e-9)


def mean_gradient(batch: Batch) -> np.ndarray:
    weight_M = np.array([t.probability for t in oracle_trajectories()])
    return weight_M @ oracle_gradient_M(batch, reinforce(batch, reward_to_go=True))


def test_potential_on_the_oracle_mdp() -> None:
    """Progress that is the state's value leaves the gradient exact; without Φ(terminal) = 0 it is twice that."""
    batch = oracle_batch(oracle_trajectories())
    progress_N = batch.reward_N + batch.x["mc_after_N"]  # 1 after a win
    batch = batch.with_columns(progress_N=progress_N)
    assert mean_gradient(shaped(batch)) == pytest.approx(ORACLE_GRADIENT, abs=1e-12)
    kept = replace(batch, reward_N=potential(batch) + np.where(batch.last_N, progress_N, 0.0))
    assert mean_gradient(kept) == pytest.approx(2 * ORACLE_GRADIENT, abs=1e-12)


# Judges


def judged(scores, rewards=None, **options):
    return toy_batch([[0] * len(scores) if rewards is None else rewards], judge_N=scores, **options)


def test_delta_numbers() -> None:
    batch = judged((0.9, 0.7, 0.8))
    assert delta(batch) == pytest.approx((0.2, 0.7, 0))
    assert returns(replace(batch, reward_N=delta(batch))) == pytest.approx((0.9, 0.7, 0))
    assert delta(judged((0.9, 0.7, 0.8), (0, 0, 1)), weight=0.5) == pytest.approx((0.1, 0.35, 1))
    assert delta(judged((0.9,))).tolist() == [0]
    assert delta(judged((0.9, 0.7))).tolist() == [0.9, 0]


def test_clip_numbers() -> None:
    assert clip(judged((0.9, 0.7, 0.8)), eta=0.8) == pytest.approx((0, -0.1, 0))
    assert clip(judged((0.9, 0.7, 0.8), (0, 0, 1)), eta=0.8, weight=2) == pytest.approx((0, -0.2, 1))


@pytest.mark.parametrize("filler", [1, 5, 50])
def test_filler_raises_the_sum_but_neither_delta_nor_clip(filler: int) -> None:
    short, long = judged((0.9, 0.7, 0.8)), judged((0.9, *[0.95] * filler, 0.7, 0.8))
    assert judge(long).sum() > judge(short).sum()
    first = [returns(replace(batch, reward_N=delta(batch)))[0] for batch in (short, long)]
    assert first == pytest.approx([0.9, 0.9])
    for eta in (0.5, 0.8, 1.0):
        assert clip(long, eta=eta).sum() <= clip(short, eta=eta).sum() + 1e-12


def test_judge_is_weighted() -> None:
    assert judge(judged((0.5, 1), (1, 2)), weight=2).tolist() == [2, 4]


# Length and tools


def test_overlong_numbers() -> None:
    batch = toy_batch([[0]] * 5, tokens=[70, 80, 90, 100, 200])
    assert overlong(batch, max_length=100, buffer=20).tolist() == [0, 0, -0.5, -1, -1]
    assert overlong(batch, max_length=100, buffer=20, factor=0.5).tolist() == [0, 0, -0.25, -0.5, -0.5]


def test_overlong_counts_all_turns_and_falls_on_the_last() -> None:
    batch = toy_batch([[0, 0, 1], [0, 1]], tokens=[30, 30, 30, 30, 30])
    assert overlong(batch, max_length=100, buffer=20).tolist() == [0, 0, 0.5, 0, 1]


@pytest.mark.parametrize(("scale", "bonus"), [(1.0, 0.3), (0.8536, 0.25608), (0.5, 0.15), (0.0, 0.0)])
def test_tool_bonus(scale: float, bonus: float) -> None:
    batch = toy_batch([[0, 0, 1], [0] * 12], valid_N=[1, 0, 1, *[1] * 12])
    reward_N = tool_bonus(batch, scale=scale)
    assert reward_N[:3] == pytest.approx((0, 0, 1 + bonus))
    assert reward_N[-1] == pytest.approx(scale)  # .1 · 12, but at most 1
    executed_N = tool_bonus(batch, scale=scale, count="executed")
    assert executed_N[2] == pytest.approx(1 + scale * 0.2)


# In a chain


def test_each_reads_what_the_one_before_left() -> None:
    batch = toy_batch([[0, 1]], tokens=60, judge_N=(0.5, 0.5), valid_N=(1, 1))
    for shaper in (partial(judge, weight=0.5), partial(overlong, max_length=100, buffer=20), tool_bonus):
        batch = replace(batch, reward_N=shaper(batch))
    assert batch.reward_N == pytest.approx((0.25, 1 + 0.25 - 1 + 0.2))


def test_a_value_of_progress_reaches_the_decision_that_made_it() -> None:
    """sC decides everything: the shaped reward of its turn alone tells win from loss."""
    batch = oracle_batch(oracle_trajectories())
    batch = replace(batch, reward_N=spa(batch, beta=0))
    at_sc = batch.anchor_N == SC
    assert np.sort(np.unique(batch.reward_N[at_sc])).tolist() == [-0.5, 0.5]
