"""The bench's figures on the oracle MDP, where all of them are known; and on samples, where they must be calibrated."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from agentgym_credit.batch import Batch, Credit
from agentgym_trainers import testing
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.credit_bench.gradient import token_scores
from agentgym_trainers.credit_bench.scores import (
    Truth,
    credit_of_turns,
    figure,
    gradient_figures,
    kendall,
    ranks,
    resamples,
    turn_figures,
    unit_gradients,
)
from agentgym_trainers.data.sequences import collate
from agentgym_trainers.nn.forward import pack, token_logprobs
from agentgym_trainers.testing import ORACLE_ADVANTAGE, ORACLE_GRADIENT, ORACLE_VALUE, SD

USE = {name: assigner.function for name, assigner in ASSIGNERS.items()}
POPULATION = testing.oracle_population()


def oracle_truth(batch: Batch) -> Truth:
    signs = np.where(batch.x["action_N"] == 0, 1.0, -1.0)
    return Truth(signs * ORACLE_ADVANTAGE[batch.anchor_N], np.zeros(len(batch.traj_N)))


def q_minus_v(batch: Batch) -> Credit:
    return Credit(oracle_truth(batch).advantage_N[batch.turn_A])


def spa_released(batch: Batch) -> Credit:
    """c_t = V(s') − V(s), R − V(s) at the end, times T − t − 1, as reward-to-go."""
    value_N, last = batch.x["value_N"], batch.last_N
    after_N = np.where(last, batch.reward_N, np.roll(value_N, -1))
    weighted = (after_N - value_N) * np.tile([2, 1, 0], len(value_N) // 3)
    return Credit(np.cumsum(weighted.reshape(-1, 3)[:, ::-1], axis=1)[:, ::-1].reshape(-1)[batch.turn_A])


def end_of_turn(batch: Batch) -> Credit:
    """Turn GAE on values read at the turn's last token, which are Q(s, a)."""
    value_N = ORACLE_VALUE[batch.anchor_N] + oracle_truth(batch).advantage_N
    return USE["turn_gae"](batch.with_columns(value_N=value_N), gamma=1.0, lam=0.0)


# Assigner, mean gradient over exact, total variance, correlation, mean |A| where the episode is already lost.
ORACLE = {
    "reinforce": (USE["reinforce"], 1.0, 0.1260, None, None),
    "dr_grpo": (USE["dr_grpo"], 1.0, 0.0996, 0.547, 0.1875),
    "gigpo, γ = 1": (partial(USE["gigpo"], gamma=1.0), 2.0, 0.3516, 0.577, 0.1875),
    "MC − V": (partial(USE["turn_gae"], gamma=1.0, lam=1.0), 1.0, 0.0840, 0.589, 0.0),
    "GAE .95": (partial(USE["turn_gae"], gamma=1.0, lam=0.95), 1.0, 0.0760, None, 0.0),
    "GAE .5": (partial(USE["turn_gae"], gamma=1.0, lam=0.5), 1.0, 0.0342, 0.837, 0.0),
    "GAE 0": (partial(USE["turn_gae"], gamma=1.0, lam=0.0), 1.0, 0.0234, 0.947, 0.0),
    "Q − V": (q_minus_v, 1.0, 0.0195, 1.0, 0.0),
}
ONE = np.ones((1, len(POPULATION)))


def oracle_scores(batch: Batch) -> np.ndarray:
    """float64[A, 5]: ∂ log π / ∂logit of each state."""
    score_AK = np.zeros((len(batch.turn_A), 5))
    score_AK[np.arange(len(score_AK)), batch.anchor_N] = np.where(batch.x["action_N"] == 0, 0.5, -0.5)
    return score_AK


def measured(batch: Batch, credit: Credit) -> tuple[dict[str, float], dict[str, float]]:
    truth, unit = oracle_truth(batch), np.arange(len(batch.group_M))
    turns = turn_figures(credit_of_turns(batch, credit), truth, unit[batch.traj_N], ONE)
    score_AK = oracle_scores(batch)
    mine, exact = (unit_gradients(batch, a, score_AK, unit) for a in (credit.advantage_A, truth.advantage_N))
    assert exact.mean(axis=0) == pytest.approx(ORACLE_GRADIENT)
    gradient = gradient_figures(mine, exact, ONE, population=True)
    return {k: v[0] for k, v in turns.items()}, {k: v[0] for k, v in gradient.items()}


@pytest.mark.parametrize("name", ORACLE)
def test_the_oracle_table_is_reproduced(name):
    assign, times, variance, correlation, dead = ORACLE[name]
    batch = testing.oracle_batch(POPULATION)
    credit = assign(batch)
    turns, gradient = measured(batch, credit)
    assert gradient["scale"] == pytest.approx(times)
    assert gradient["bias"] == pytest.approx(0.0, abs=1e-7)
    assert gradient["cosine"] == pytest.approx(1.0)
    assert gradient["variance"] == pytest.approx(variance, abs=6e-5)
    assert gradient["noise"] == pytest.approx(variance / times**2 / (ORACLE_GRADIENT @ ORACLE_GRADIENT), rel=1e-2)
    if correlation is not None:
        assert turns["pearson"] == pytest.approx(correlation, abs=6e-4)
        assert turns["raw"] == turns["pearson"]
    if dead is not None:
        credit_N = credit_of_turns(batch, credit)
        assert np.abs(credit_N[batch.anchor_N == SD]).mean() == pytest.approx(dead)
        assert (turns["blame"] > 0) == (dead > 0)


def test_wrong_credit_differs_from_noisy_credit():
    """Two assigners whose gradients are wrong, whatever the learning rate."""
    batch = testing.oracle_batch(POPULATION)
    turns, gradient = measured(batch, spa_released(batch))
    assert turns["pearson"] == pytest.approx(0.359, abs=6e-4)
    assert gradient["variance"] == pytest.approx(0.0225, abs=6e-5)
    assert gradient["bias"] > 0.5
    turns, gradient = measured(batch, end_of_turn(batch))
    assert turns["pearson"] == pytest.approx(0.0, abs=1e-9)
    assert np.isnan(gradient["bias"])  # there is no signal that it could be compared with
    assert gradient["scale"] == pytest.approx(0.0, abs=1e-9)
    turns, _ = measured(batch, Credit(np.ones(len(batch.turn_A))))
    assert (turns["pearson"], turns["sign"]) == (0.0, 0.5)


def test_sign_and_blame_by_hand():
    truth = Truth(np.array([0.4, -0.1, 0.02, 0.0, np.nan]), np.array([0.05, 0.01, 0.05, 0.0, 0.1]))
    assert truth.irrelevant_N.tolist() == [False, False, True, True, False]
    unit_N, one = np.zeros(5, np.int64), np.ones((1, 1))
    figures = turn_figures(np.array([1.0, 1.0, -1.0, 2.0, 100.0]), truth, unit_N, one)
    assert figures["sign"][0] == pytest.approx(0.4 / 0.5)
    assert figures["blame"][0] == pytest.approx(3 / 5)
    assert turn_figures(np.zeros(5), truth, unit_N, one)["sign"][0] == 0.5
    assert np.isnan(turn_figures(np.zeros(5), truth, unit_N, one)["blame"][0])


def test_the_noise_of_the_truth_is_taken_out_of_the_correlation():
    """A truth seen through noise as large as itself lowers every correlation by √½; taken away, it does not."""
    rng = np.random.default_rng(0)
    n, units = 10_000, 50
    true = rng.normal(size=n)
    x = 0.8 * true + 0.6 * rng.normal(size=n)
    truth = Truth(true + rng.normal(size=n), np.ones(n))
    unit_N = np.repeat(np.arange(units), n // units)
    figures = turn_figures(x, truth, unit_N, resamples(units, 100, rng))
    assert figures["raw"][0] == pytest.approx(0.8 / 2**0.5, abs=0.02)
    assert figures["pearson"][0] == pytest.approx(0.8, abs=0.02)
    interval = figure(figures["pearson"])
    assert interval.low < 0.8 < interval.high
    assert interval.high - interval.low < 0.06


def test_sample_figures_are_unbiased_and_intervals_cover():
    """Groups of four drawn from the oracle: bias and variance by pairs of groups are those of the closed form."""
    every = testing.oracle_trajectories()
    chance = np.array([t.probability for t in every])
    rng = np.random.default_rng(1)
    covered, scales, variances, plugged = 0, [], [], []
    for _ in range(60):
        drawn = [every[i] for i in rng.choice(len(every), size=4 * 40, p=chance)]
        batch = testing.oracle_batch(drawn, groups=np.repeat(np.arange(40), 4))
        truth, score_AK = oracle_truth(batch), oracle_scores(batch)
        mine = unit_gradients(batch, USE["reinforce"](batch).advantage_A, score_AK, batch.group_M)
        exact = unit_gradients(batch, truth.advantage_N, score_AK, batch.group_M)
        weights = resamples(40, 200, rng)
        figures = gradient_figures(mine, exact, weights, size=4)
        scales.append(figures["scale"][0])
        variances.append(figures["variance"][0])
        plugged.append(gradient_figures(mine, exact, weights[:1], size=4, population=True)["bias"][0])
        interval = figure(figures["scale"])
        covered += interval.low <= 1.0 <= interval.high
    assert np.mean(scales) == pytest.approx(1.0, abs=0.1)
    assert np.mean(variances) == pytest.approx(0.1260, rel=0.05)
    assert covered >= 48
    assert np.mean(plugged) > 0.15  # the defect: noise taken for bias


@pytest.mark.parametrize("seed", range(5))
def test_kendall_is_scipys_on_every_resample(seed):
    """A resample of units is the sample with their turns written out as often; ties are in both columns."""
    rng = np.random.default_rng(seed)
    unit = np.sort(rng.integers(0, 6, 30))
    x, y = rng.integers(0, 5, 30) / 7.0, rng.integers(0, 4, 30) - rng.random(30).round(1)
    weights = resamples(6, 4, rng)
    for found, weight in zip(kendall(x, y, unit, weights), weights, strict=True):
        drawn = np.repeat(np.arange(30), weight[unit].astype(int))
        assert found == pytest.approx(kendalltau(x[drawn], y[drawn]).statistic)


def test_kendall_by_hand():
    """Of three pairs two are ordered rightly and one is tied in credit: 2 / √(2 · 3); constant credit has 0."""
    y, one = np.array([1.0, 2.0, 3.0]), np.zeros(3, int)
    assert kendall(np.array([0.1, 0.1 + 1e-15, 0.7]), y, one, np.ones((1, 1))) == pytest.approx([2 / 6**0.5])
    assert kendall(np.zeros(3), y, one, np.ones((1, 1))) == [0]


def test_ranks_share_ties():
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]


def test_resamples_begin_with_the_sample():
    drawn = resamples(5, 3, np.random.default_rng(0))
    assert drawn[0].tolist() == [1.0] * 5
    assert drawn.sum(axis=1).tolist() == [5.0] * 4


def test_a_sketch_keeps_inner_products_of_gradients(kit, tokenizer):
    """Each token's score against one full backward pass; wide sketches agree to a few per cent of the norms."""
    model = kit.build(vocabulary=len(tokenizer))
    batch, rows, _ = collate(kit.in_pairs(kit.play(model, tokenizer, episodes=2, max_turns=2)))
    tokens = len(batch.turn_A)
    sketch_AK = token_scores(model, rows, tokens, width=4096)
    logprob = token_logprobs(model, pack(rows, model)).logprob
    index = pack(rows, model).index
    full = np.zeros((tokens, sum(p.numel() for p in model.parameters())))
    for k, place in enumerate(index.tolist()):
        parts = torch.autograd.grad(logprob[k], list(model.parameters()), retain_graph=True)
        full[place] = torch.cat([part.reshape(-1) for part in parts]).numpy()
    exact, kept = full @ full.T, sketch_AK.astype(np.float64) @ sketch_AK.T
    norms = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
    assert np.abs(kept - exact).max() < 0.1 * norms.max()
    assert np.abs((kept - exact) / norms).mean() < 0.02
    again = token_scores(model, rows, tokens, width=4096)
    np.testing.assert_array_equal(again, sketch_AK)


def test_an_interval_may_be_infinite_and_skips_undefined():
    interval = figure(np.array([2.0, 1.0, np.inf, np.nan, 3.0]))
    assert (interval.value, interval.low, interval.high) == (2.0, 1.0, np.inf)
    assert np.isnan(figure(np.array([1.0, np.nan])).low)
