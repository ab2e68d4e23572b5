"""Each assigner on the enumerated oracle MDP: its exact mean gradient and total variance, row by row."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from agentgym_credit.assigners.action_value import digiq, q_minus_v
from agentgym_credit.assigners.beacon import beacon
from agentgym_credit.assigners.critical import critical
from agentgym_credit.assigners.digirl import digirl
from agentgym_credit.assigners.gae import bilevel_gae, token_gae, turn_gae
from agentgym_credit.assigners.gagpo import gagpo
from agentgym_credit.assigners.gigpo import gigpo
from agentgym_credit.assigners.group_baselines import dr_grpo, grpo, loop, reinforce, rloo
from agentgym_credit.assigners.hgpo import hgpo
from agentgym_credit.assigners.hindsight import hcapo
from agentgym_credit.assigners.implicit import istar, prime, prm_tokens, prm_turns
from agentgym_credit.assigners.monte_carlo import mc_branch
from agentgym_credit.assigners.oreo import oreo
from agentgym_credit.assigners.outcome import a_lol, filtered, outcome, replay_baseline
from agentgym_credit.assigners.reward_to_go import mt_grpo, rtg_loo
from agentgym_credit.assigners.rewardflow import rewardflow
from agentgym_credit.assigners.self_play import rae
from agentgym_credit.assigners.spae import spae
from agentgym_credit.batch import Batch, Credit
from agentgym_credit.segments import remaining
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.data.reward_shaping import SHAPERS
from agentgym_trainers.testing import (
    ORACLE_ADVANTAGE,
    ORACLE_GRADIENT,
    ORACLE_VALUE,
    SC,
    SD,
    oracle_batch,
    oracle_gradient_M,
    oracle_groups,
    oracle_population,
    oracle_trajectories,
)

EXACT = ORACLE_GRADIENT
POTENTIAL = np.array([0.3, 0.9, -0.2, 0.5, 0.1])
STD_R = (ORACLE_VALUE[0] * (1 - ORACLE_VALUE[0])) ** 0.5


@cache
def alone(tokens: int = 1) -> tuple[Batch, np.ndarray]:
    """The ten trajectories, each its own group, and their probabilities."""
    every = oracle_trajectories()
    return oracle_batch(every, groups=range(10), tokens=tokens), np.array([t.probability for t in every])


@cache
def infinite(copies: int = 1) -> tuple[Batch, np.ndarray]:
    """One group that holds each trajectory in proportion to its probability, so its means are expectations."""
    population = oracle_population(copies)
    return oracle_batch(population), np.full(len(population), 1 / len(population))


every_group = cache(oracle_groups)


def moments(batch: Batch, weight_M: np.ndarray, credit: Credit) -> tuple[np.ndarray, float]:
    gradient_M = oracle_gradient_M(batch, credit)
    mean = weight_M @ gradient_M
    return mean, float(weight_M @ ((gradient_M - mean) ** 2).sum(axis=1))


def shaped(batch: Batch, potential_win: float = 0.0) -> Batch:
    """r_t + Φ(s_{t+1}) − Φ(s_t), Φ of a win given, of a loss 0."""
    potential_N = POTENTIAL[batch.anchor_N]
    after_N = np.where(batch.last_N, potential_win * batch.reward_N, np.roll(potential_N, -1))
    return replace(batch, reward_N=batch.reward_N + after_N - potential_N)


def progress(batch: Batch, *, released: bool = False) -> Batch:
    """SPA's c_t = V(s_{t+1}) − V(s_t) as rewards; released code multiplies turn t of T by T − t − 1."""
    progress_N = SHAPERS["spa"].function(batch, beta=0.0)
    return replace(batch, reward_N=progress_N * (remaining(batch.traj_N) if released else 1.0))


def anchors_only(batch: Batch) -> Credit:
    return Credit(gigpo(batch).advantage_A - gigpo(batch, omega=0).advantage_A)


ROWS = {
    "reinforce": (alone(), reinforce, 1 * EXACT, 0.1260),
    "reinforce to go": (alone(), partial(reinforce, reward_to_go=True), 1 * EXACT, 0.1260),
    "dr_grpo K→∞": (infinite(), dr_grpo, 1 * EXACT, 0.0996),
    "rloo K=10⁴": (infinite(625), rloo, 1 * EXACT, 0.0996),
    "turn_gae λ=1": (alone(), partial(turn_gae, gamma=1, lam=1), 1 * EXACT, 0.0840),
    "turn_gae λ=.95": (alone(), partial(turn_gae, gamma=1, lam=0.95), 1 * EXACT, 0.0760),
    "turn_gae λ=.5": (alone(), partial(turn_gae, gamma=1, lam=0.5), 1 * EXACT, 0.0342),
    "turn_gae λ=0": (alone(), partial(turn_gae, gamma=1, lam=0), 1 * EXACT, 0.0234),
    "token_gae, one token, λ=.5": (alone(), partial(token_gae, lam=0.5), 1 * EXACT, 0.0342),
    "token_gae, two tokens, λ=0: Q − V": (alone(2), partial(token_gae, lam=0), 1 * EXACT, 0.0195),
    "token_gae, two tokens, λ=1": (alone(2), partial(token_gae, lam=1), 1 * EXACT, 0.0840),
    "bilevel_gae, λ over turns": (alone(2), partial(bilevel_gae, gamma_turn=1, lam=1), 1 * EXACT, 0.0813),
    "bilevel_gae, λ over both": (alone(2), partial(bilevel_gae, gamma_turn=1), 1 * EXACT, 0.0753),
    "gigpo K→∞": (infinite(), partial(gigpo, gamma=1), 2 * EXACT, 0.3516),
    "gigpo, anchors alone, γ=.95": (infinite(), anchors_only, np.array([0.0282, 0.0594, 0.0297, 0.0938, 0]), 0.0740),
    "potential": (alone(), lambda b: reinforce(shaped(b), reward_to_go=True), 1 * EXACT, 0.1547),
    "potential, Φ(win)=1": (alone(), lambda b: reinforce(shaped(b, 1.0), reward_to_go=True), 2 * EXACT, 0.4077),
    "progress": (alone(), lambda b: reinforce(progress(b), reward_to_go=True), 1 * EXACT, 0.0840),
    "progress, released": (
        alone(),
        lambda b: reinforce(progress(b, released=True), reward_to_go=True),
        np.array([0.0625, 0.0625, 0.03125, 0, 0]),
        0.0225,
    ),
    "progress as advantage": (alone(), lambda b: Credit(progress(b).reward_N), 1 * EXACT, 0.0234),
    "digirl λ=.5": (alone(), digirl, 1 * EXACT, 0.0580),
    "q_minus_v": (alone(), q_minus_v, 1 * EXACT, 0.0195),
    # Of these the table has no row: means are derived where they are formulas, other numbers are sums over the ten.
    "mc_branch, exact values": (alone(), mc_branch, 1 * EXACT, 0.0234),
    "hgpo K→∞: G − V at every level": (infinite(), partial(hgpo, gamma=1), 1 * EXACT, 0.0840),
    "gagpo K→∞, λ=1: turn_gae's": (infinite(), partial(gagpo, gamma=1, lam=1), 1 * EXACT, 0.0840),
    "gagpo K→∞, λ=.5: turn_gae's": (infinite(), partial(gagpo, gamma=1, lam=0.5), 1 * EXACT, 0.0342),
    "spae K→∞, no answer: dr_grpo": (infinite(), partial(spae, alpha=0, xi=0), 1 * EXACT, 0.0996),
    # At γ = 1 the second term has the gradient of the chances to reach sC and to win from there. Half of all who reach
    # sC win, so that the first three logits count thrice and the last one twice.
    "beacon K→∞, γ=1": (infinite(), partial(beacon, gamma=1), np.array([3, 3, 3, 2, 0]) * EXACT, 0.3645),
    # ρ is Q / V of a win, (1 − Q) / (1 − V) of a loss; R less its mean is 13/16 or −3/16. The two actions' difference
    # counts a quarter of the chance of a visit. At s0 the second action of a win would have ρ = 2/3, and has 1.
    "hcapo K→∞, exact hindsight": (
        infinite(),
        hcapo,
        np.array([13 / 48 - 27 / 208 - 13 / 128 + 147 / 832, 1 / 2, (13 / 32 - 27 / 224 + 3 / 14) / 2, 3 / 4, 0]) / 4,
        0.2648,
    ),
    "critical K=10⁴, all states alike: grpo": (infinite(625), critical, EXACT / STD_R, 0.0996 / STD_R**2),
    "loop K=10⁴": (infinite(625), loop, 1 * EXACT, 0.0996),
    "rtg_loo K=10⁴": (infinite(625), rtg_loo, 1 * EXACT, 0.0996),
    "mt_grpo K=10⁴: R − V over std R": (infinite(625), mt_grpo, EXACT / STD_R, 0.6538),
    "rae, baseline V(s0)": (alone(), rae, 1 * EXACT, 0.0996),
    "prime K=10⁴, q = progress: exact twice": (
        infinite(625),
        partial(prime, variant="paper", beta=1),
        2 * EXACT,
        0.3516,
    ),
    # Progress is a martingale's steps: their variance, a third of R's.
    "istar K=10⁴, q = progress: each over its std": (
        infinite(625),
        partial(istar, beta=1),
        EXACT * (1 + 3**0.5) / STD_R,
        1.6482,
    ),
    "prm_tokens K=10⁴, q = progress: as progress": (infinite(625), prm_tokens, 1 * EXACT, 0.0840),
    "prm_turns K=10⁴, q = progress: as progress as advantage": (infinite(625), prm_turns, 1 * EXACT, 0.0234),
    # The best way from sA and from sB leads to sC, worth 1 a turn later: nothing to choose at s0, γ/2 to gain at sA,
    # and half of that at sB, where luck counts as a way.
    "rewardflow K→∞": (infinite(), rewardflow, EXACT + np.array([0, 0.11875, 0.059375, 0.09375, 0]), 0.2087),
    "digirl λ=0: as λ=.5 but the last": (alone(), partial(digirl, lam=0), 1 * EXACT, 0.0469),
    "digirl λ=1": (alone(), partial(digirl, lam=1), 1 * EXACT, 0.1260),
    # Kept: all of L and an eighth of R; g from sA; g from sB if it led to sC; the win.
    "digirl, filter": (alone(), partial(digirl, filter=True), np.array([7 / 32, 1 / 8, 1 / 16, 3 / 32, 0]), 0.2051),
    # Every good action weighs alike: the chance of a visit, times ½ for taking it, times ½, its score.
    "digiq, exact critic": (alone(), digiq, np.array([1, 1 / 2, 1 / 2, 3 / 8, 0]) / 4, 0.1943),
    "outcome": (alone(), outcome, 1 * EXACT, 0.1260),
    "filtered": (alone(), filtered, 1 * EXACT, 0.1260),
    "a_lol: (1 − V) R": (alone(), a_lol, 0.8125 * EXACT, 0.0832),
    "recalibrated: (1 − V) R": (alone(), replay_baseline, 0.8125 * EXACT, 0.0832),
    "oreo: its objective does it all": (alone(), oreo, 0 * EXACT, 0.0),
}


@pytest.mark.parametrize("row", ROWS)
def test_mean_gradient_and_variance(row: str) -> None:
    (batch, weight_M), assign, gradient, variance = ROWS[row]
    mean, total = moments(batch, weight_M, assign(batch))
    rounded = "K=10⁴" in row or row.startswith("gigpo, anchors")  # the others hold exactly
    assert mean == pytest.approx(np.ravel(gradient), abs=5.1e-5 if rounded else 1e-12)
    assert total == pytest.approx(variance, abs=1.1e-4 if "istar" in row else 5.1e-5)


def test_every_assigner_has_a_row() -> None:
    rows = {row.split()[0].rstrip(",:") for row in ROWS} | {"grpo"}  # grpo's scale is that of finite groups, below
    assert rows >= ASSIGNERS.keys()


@pytest.mark.parametrize(
    ("assign", "size", "scale"),
    [
        (rloo, 2, 1.0),
        (rloo, 4, 1.0),
        (dr_grpo, 2, 1 / 2),
        (dr_grpo, 4, 3 / 4),
        (grpo, 2, 0.7071),
        (grpo, 4, 1.4388),
        (loop, 2, 1.0),
        (loop, 4, 1.0),
        (rtg_loo, 2, 1.0),
        (rtg_loo, 4, 1.0),
        (mt_grpo, 2, 0.7071),
        (mt_grpo, 4, 1.4388),
        (partial(prime, variant="paper", beta=1.0), 2, 2.0),
        (partial(prime, variant="paper", beta=1.0), 4, 2.0),
        (partial(gigpo, omega=0.0, norm="std"), 4, 1.4388),
    ],
)
def test_mean_gradient_of_finite_groups(assign, size: int, scale: float) -> None:
    batch, weight_M = every_group(size)
    mean, _ = moments(batch, weight_M, assign(batch))
    assert mean == pytest.approx(scale * EXACT, abs=1e-12 if size * scale % 1 == 0 else 5e-6)


@pytest.mark.parametrize(("lam", "variance"), [(1.0, 0.0645), (0.95, 0.0618), (0.5, 0.0439), (0.0, 0.0371)])
def test_turn_gae_on_end_of_turn_values_is_pure_noise(lam: float, variance: float) -> None:
    batch, weight_M = alone(2)
    wrong = batch.with_columns(value_N=batch.x["value_A"][batch.last_A])
    mean, total = moments(wrong, weight_M, turn_gae(wrong, gamma=1, lam=lam))
    assert mean == pytest.approx(np.zeros(5), abs=1e-15)
    assert total == pytest.approx(variance, abs=5.1e-5)


def test_potential_leaves_the_mean_of_any_potential_unchanged() -> None:
    batch, weight_M = alone()
    for assign in (reinforce, partial(reinforce, reward_to_go=True), partial(turn_gae, gamma=1, lam=1)):
        assert moments(batch, weight_M, assign(shaped(batch)))[0] == pytest.approx(EXACT, abs=1e-12)


@pytest.mark.parametrize(
    ("assign", "correlation", "blame"),
    [
        (dr_grpo, 0.547, 0.1875),
        (partial(gigpo, gamma=1), 0.577, 0.1875),
        (partial(turn_gae, gamma=1, lam=1), 0.589, 0.0),
        (partial(turn_gae, gamma=1, lam=0.5), 0.837, 0.0),
        (partial(turn_gae, gamma=1, lam=0), 0.947, 0.0),
        (q_minus_v, 1.0, 0.0),
        # enumerated
        (mc_branch, 0.947, 0.0),
        (partial(hgpo, gamma=1), 0.589, 0.0),
        (digirl, 0.732, 0.0),
        (digiq, 0.698, 0.0),
        (rewardflow, 0.7706, 0.1875),
        (filtered, 0.547, 0.0),
        (rae, 0.547, 0.1875),
        (lambda b: reinforce(progress(b, released=True), reward_to_go=True), 0.359, 0.0),
        (lambda b: turn_gae(b.with_columns(value_N=b.x["q_N"]), gamma=1, lam=0.5), 0.0, 0.0),
    ],
)
def test_correlation_with_the_oracle_advantage(assign, correlation: float, blame: float) -> None:
    batch, _ = infinite()
    advantage_N = assign(batch).advantage_A
    oracle_N = ORACLE_ADVANTAGE[batch.anchor_N] * np.where(batch.x["action_N"] == 0, 1, -1)
    assert np.corrcoef(advantage_N, oracle_N)[0, 1] == pytest.approx(correlation, abs=5.1e-4)
    assert np.abs(advantage_N[batch.anchor_N == SD]).mean() == pytest.approx(blame, abs=1e-12)


def test_constants_agree_with_the_enumeration() -> None:
    every = oracle_trajectories()
    assert len(every) == 10
    for state in range(5):
        through = [t for t in every if state in t.states]
        value = np.average([t.reward for t in through], weights=[t.probability for t in through])
        assert value == pytest.approx(ORACLE_VALUE[state], abs=1e-15)
    nudge = 1e-6
    up = np.full(5, 0.5)
    up[SC] += nudge / 4  # dp/dlogit at ½
    gain = sum(t.probability * t.reward for t in oracle_trajectories(up)) - ORACLE_VALUE[0]
    assert gain / nudge == pytest.approx(EXACT[SC], rel=1e-6)
