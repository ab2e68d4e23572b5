"""Correctors: exact weights at every level, and denominators that stay what they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from agentgym_trainers.losses import ppo_clip, token_weights
from agentgym_trainers.losses.importance import CorrectOptions, apply, correct
from agentgym_trainers.testing import random_batch, reorder, toy_batch

LOG_RATIOS = np.array([0.1, 0.8, -0.3])


def weigh(log_ratios=LOG_RATIOS, batch=None, **options):
    batch = batch or toy_batch([[0, 0]], tokens=[2, 1])
    behavior = np.full(len(log_ratios), -1.0)
    return correct(behavior + log_ratios, behavior, batch, **options)


def test_tis_numbers() -> None:
    weight, metrics = weigh(kind="tis", cap=2.0)
    assert weight == pytest.approx([1.1052, 2, 0.7408], abs=1e-4)
    assert weight.dtype == np.float64
    assert metrics["capped"] == pytest.approx(1 / 3)
    assert metrics["weight_mean"] == pytest.approx(weight.mean())
    assert metrics["weight_max"] == 2
    assert metrics["zeroed"] == 0
    assert metrics["effective"] == pytest.approx(weight.sum() ** 2 / (3 * (weight**2).sum()))
    assert metrics["k1"] == pytest.approx(-0.2)
    assert metrics["k3"] == pytest.approx((np.exp(LOG_RATIOS) - 1 - LOG_RATIOS).mean())
    assert metrics["logprob_gap_max"] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("kind", "level", "options", "expected"),
    [
        ("tis", "turn", {"cap": 9.0}, np.exp([0.9, 0.9, -0.3])),
        ("tis", "trajectory", {"cap": 9.0}, np.exp([0.6, 0.6, 0.6])),
        ("tis", "trajectory", {"cap": 1.5}, (1.5, 1.5, 1.5)),
        ("mis", "token", {}, (np.exp(0.1), 0, np.exp(-0.3))),
        ("mis", "token", {"low": 0.8}, (np.exp(0.1), 0, 0)),
        ("mis", "turn", {}, (0, 0, np.exp(-0.3))),
        ("mis", "token", {"low": 0.5, "high": 5.0}, np.exp(LOG_RATIOS)),
        ("mis", "token", {"low": 0.9, "high": 1.2}, (np.exp(0.1), 0, 0)),
    ],
)
def test_weights(kind, level, options, expected) -> None:
    assert weigh(kind=kind, level=level, **options)[0] == pytest.approx(np.array(expected))


def test_decoupled_ppo_is_the_ratio_to_the_behavior() -> None:
    """ℓ_θ = −1, ℓ_prox = −1.1, ℓ_beh = −1.5, A = 1: ρ = 1.105171, w = 1.491825, the product e^.5 = π_θ / π_beh."""
    new = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    prox, behavior = np.array([-1.1]), np.array([-1.5])
    weight, _ = correct(prox, behavior, toy_batch([[1]]), kind="tis", cap=5.0)
    loss_A, metrics = ppo_clip(new, torch.from_numpy(prox), torch.ones(1, dtype=torch.float64))
    (torch.from_numpy(weight) * loss_A).sum().backward()
    assert metrics["ratio_mean"].item() == pytest.approx(1.105171, abs=1e-6)
    assert weight[0] == pytest.approx(1.491825, abs=1e-6)
    assert new.grad.item() == pytest.approx(-1.648721, abs=1e-6)


@pytest.mark.parametrize("kind", ["tis", "mis"])
@pytest.mark.parametrize("level", ["token", "turn", "trajectory"])
def test_without_a_mismatch_every_weight_is_one(kind, level) -> None:
    weight, metrics = weigh(np.zeros(3), kind=kind, level=level)
    assert weight.tolist() == [1, 1, 1]
    assert metrics["effective"] == 1


def test_dropping_tokens_never_changes_what_others_weigh() -> None:
    """Law 6: a kept token's gradient is the same however many others were dropped; denominators count all."""
    batch = toy_batch([[0, 0], [0]], tokens=[3, 2, 4])
    generator = np.random.default_rng(0)
    advantage = torch.from_numpy(generator.normal(size=9))
    reduced = token_weights(batch, "token_mean")
    gradients = []
    for drop in ([], [2], [2, 5, 7]):
        log_ratios = np.full(9, 0.1)
        log_ratios[drop] = 3.0
        weight, _ = correct(log_ratios - 1, np.full(9, -1.0), batch, kind="mis")
        assert np.flatnonzero(weight == 0).tolist() == drop
        new = torch.full((9,), -0.9, dtype=torch.float64, requires_grad=True)
        loss_A, _ = ppo_clip(new, new.detach(), advantage)
        (torch.from_numpy(reduced * weight) * loss_A).sum().backward()
        assert (new.grad[drop] == 0).all()
        gradients.append(new.grad)
    kept = [0, 1, 3, 4, 6, 8]
    assert torch.equal(gradients[0][kept], gradients[1][kept])
    assert torch.equal(gradients[0][kept], gradients[2][kept])


@pytest.mark.parametrize("kind", ["tis", "mis"])
@pytest.mark.parametrize("level", ["token", "turn", "trajectory"])
def test_weights_permute_and_stay_in_their_own_unit(kind, level) -> None:
    rng = np.random.default_rng(3)
    batch = random_batch(rng, group_size=3)
    prox, behavior = rng.normal(-2, 0.3, (2, len(batch.turn_A)))
    weight, _ = correct(prox, behavior, batch, kind=kind, level=level, low=0.7, high=1.6)
    moved, _, old_A = reorder(batch, rng.permutation(len(batch.group_M)))
    assert correct(prox[old_A], behavior[old_A], moved, kind=kind, level=level, low=0.7, high=1.6)[0] == pytest.approx(
        weight[old_A]
    )
    poisoned = prox.copy()
    poisoned[batch.traj_A == 0] = np.nan
    others = batch.traj_A != 0
    after, _ = correct(poisoned, behavior, batch, kind=kind, level=level, low=0.7, high=1.6)
    assert np.array_equal(after[others], weight[others])


def test_extremes_and_no_tokens() -> None:
    weight, metrics = weigh(np.array([500.0, -500.0, 0.0]), kind="mis", level="trajectory")
    assert np.isfinite(weight).all()
    assert np.isfinite(list(metrics.values())).all()
    nothing = toy_batch([], tokens=0)
    for kind in ("tis", "mis"):
        weight, metrics = correct(np.zeros(0), np.zeros(0), nothing, kind=kind, level="turn")
        assert len(weight) == 0
        assert metrics == {}


def test_options_say_what_does_not_fit() -> None:
    assert CorrectOptions().band == (0, 2)
    for options, message in (
        ({"kind": "tis", "high": 3.0}, "no band"),
        ({"kind": "mis", "low": 3.0}, "above"),
        ({"kind": "tos"}, "tis"),
        ({"capp": 3.0}, "capp"),
    ):
        with pytest.raises(ValidationError, match=message):
            CorrectOptions(**options)


def test_apply_reads_the_options() -> None:
    batch = toy_batch([[0, 0]], tokens=[2, 1])
    behavior = np.full(3, -1.0)
    weight, _ = apply(CorrectOptions(kind="mis", level="turn", high=2.5), behavior + LOG_RATIOS, behavior, batch)
    assert weight == pytest.approx(np.exp([0.9, 0.9, -0.3]))
