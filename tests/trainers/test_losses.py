"""Losses: published numbers, exact gradients, and weights that do not depend on how a batch is cut."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch

from agentgym_trainers.losses import (
    cross_entropy,
    entropy,
    kl,
    policy_gradient,
    ppo_clip,
    token_weights,
    turn_weights,
    value_loss,
)
from agentgym_trainers.losses.reduce import Reducer
from agentgym_trainers.testing import random_batch, reorder, toy_batch

MODES = get_args(Reducer)


def tensor(*numbers: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=grad)


def weights(batch, mode: Reducer) -> torch.Tensor:
    return torch.from_numpy(token_weights(batch, mode, 7 if mode == "constant" else None))


def at_ratio(*ratios: float) -> tuple[torch.Tensor, torch.Tensor]:
    old = torch.full((len(ratios),), -1.0, dtype=torch.float64)
    return (old + tensor(*ratios).log()).requires_grad_(), old


@pytest.mark.parametrize(
    ("advantage", "expected", "gradient"), [(1.0, -1.02, (0, 0, -1 / 6)), (-1.0, 1.766667, (0, 0.5, 0))]
)
def test_ppo_dual_clip_numbers(advantage: float, expected: float, gradient) -> None:
    new, old = at_ratio(5, 1.5, 0.5)
    loss_A, _ = ppo_clip(new, old, torch.full_like(old, advantage), clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    loss = loss_A.mean()
    loss.backward()
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    assert new.grad.tolist() == pytest.approx(gradient)


def test_ppo_without_dual_clip_keeps_large_ratio_gradients() -> None:
    new, old = at_ratio(5)
    ppo_clip(new, old, tensor(-1))[0].sum().backward()
    assert new.grad.tolist() == pytest.approx([5])


def test_ppo_clip_higher() -> None:
    new, old = at_ratio(1.3)
    assert ppo_clip(new, old, tensor(1), clip_high=0.28)[0].item() == pytest.approx(-1.28)


def test_ppo_metrics() -> None:
    new, old = at_ratio(5, 1.5, 0.5, 0.5)
    metrics = ppo_clip(new, old, tensor(1, -1, -1, 1))[1]
    assert {name: value.item() for name, value in metrics.items()} == pytest.approx(
        {
            "clip_low": 1 / 4,
            "clip_high": 1 / 4,
            "ratio_mean": 7.5 / 4,
            "ratio_max": 5,
            "kl_old": np.mean([r - 1 - np.log(r) for r in (5, 1.5, 0.5, 0.5)]),
        }
    )
    assert not any(value.requires_grad for value in metrics.values())


def test_ppo_log_ratio_is_bounded() -> None:
    new, old = tensor(0, -200, grad=True), tensor(-200, 0)
    loss_A, metrics = ppo_clip(new.float(), old.float(), tensor(-1, -1).float())
    loss_A.sum().backward()
    assert torch.isfinite(loss_A).all()
    assert torch.isfinite(new.grad).all()
    assert torch.isfinite(metrics["kl_old"])


def test_on_policy_gradient_is_the_policy_gradient() -> None:
    advantage = tensor(1.5, -2, 0, 0.3)
    for objective in (
        lambda new: ppo_clip(new, new.detach(), advantage),
        lambda new: ppo_clip(new, new.detach(), advantage, dual_clip=3.0),
        lambda new: policy_gradient(new, new.detach(), advantage),
    ):
        new = tensor(-1, -2, -0.5, -0.1, grad=True)
        objective(new)[0].sum().backward()
        assert new.grad.tolist() == pytest.approx((-advantage).tolist(), abs=1e-12)


def test_decoupled_ppo_is_a_weight_on_ppo() -> None:
    """π_θ/π_prox · π_prox/π_behave = π_θ/π_behave."""
    new, prox, behave = tensor(-1, grad=True), tensor(-1.1), tensor(-1.5)
    loss_A, metrics = ppo_clip(new, prox, tensor(1))
    ((prox - behave).exp() * loss_A).sum().backward()
    assert metrics["ratio_mean"].item() == pytest.approx(1.105171, abs=1e-6)
    assert new.grad.item() == pytest.approx(-1.648721, abs=1e-6)


def test_value_loss() -> None:
    value = tensor(1, 2, grad=True)
    loss = value_loss(value, tensor(0, 2))
    assert loss.tolist() == [0.5, 0]
    loss.sum().backward()
    assert value.grad.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [("k1", 0.2, 1.0), ("k2", 0.02, 0.2), ("k3", 0.018731, 1 - np.exp(-0.2)), ("k3+", 0.018731, 0.2)],
)
def test_kl_numbers(estimator, value: float, gradient: float) -> None:
    logprob = tensor(-1, grad=True)
    penalty = kl(logprob, tensor(-1.2), estimator)
    penalty.sum().backward()
    assert penalty.item() == pytest.approx(value, abs=1e-6)
    assert logprob.grad.item() == pytest.approx(gradient)


def test_kl_gradients_in_expectation() -> None:
    """Over a whole vocabulary: k2 and k3+ have the gradient of KL(π ‖ ref), k1 none, k3 that of KL(ref ‖ π)."""
    reference = torch.log_softmax(tensor(0.5, 0.1, -1), 0)

    def gradient(loss) -> list[float]:
        logits = tensor(0.3, -0.2, 0.9, grad=True)
        loss(torch.log_softmax(logits, 0)).backward()
        return logits.grad.tolist()

    def sampled(estimator):
        return gradient(lambda new: (new.detach().exp() * kl(new, reference, estimator)).sum())

    forward = gradient(lambda new: (new.exp() * (new - reference)).sum())
    reverse = gradient(lambda new: (reference.exp() * (reference - new)).sum())
    assert sampled("k2") == pytest.approx(forward)
    assert sampled("k3+") == pytest.approx(forward)
    assert sampled("k1") == pytest.approx([0, 0, 0], abs=1e-12)
    assert sampled("k3") == pytest.approx(reverse)


def test_entropy_and_cross_entropy_signs() -> None:
    assert entropy(tensor(0.7)).tolist() == [-0.7]
    assert cross_entropy(tensor(-0.7)).tolist() == [0.7]


@pytest.mark.parametrize(
    ("mode", "expected"), [("token_mean", 1.6), ("trajectory_sum", 4), ("trajectory_mean", 2.5), ("constant", 1.0)]
)
def test_aggregation_numbers(mode: Reducer, expected: float) -> None:
    batch = toy_batch([[0], [0]], tokens=[4, 1])
    loss_A = np.array([1, 1, 1, 1, 4])
    assert token_weights(batch, mode, 4 if mode == "constant" else None) @ loss_A == pytest.approx(expected)


def test_turn_mean_counts_turns_alike() -> None:
    batch = toy_batch([[0, 0], [0]], tokens=[1, 3, 2])
    assert token_weights(batch, "turn_mean") == pytest.approx([1 / 3] + [1 / 9] * 3 + [1 / 6] * 2)
    assert turn_weights(batch) == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("mode", ["token_mean", "turn_mean", "trajectory_mean"])
def test_means_have_weight_one(mode: Reducer) -> None:
    assert token_weights(random_batch(np.random.default_rng(0)), mode).sum() == pytest.approx(1)


def test_only_constant_takes_a_length() -> None:
    batch = toy_batch([[0]])
    with pytest.raises(ValueError, match="length"):
        token_weights(batch, "constant")
    with pytest.raises(ValueError, match="length"):
        token_weights(batch, "token_mean", 4)


@pytest.mark.parametrize("mode", MODES)
def test_permuting_trajectories_permutes_weights(mode: Reducer) -> None:
    batch = random_batch(np.random.default_rng(0))
    permuted, _, old_A = reorder(batch, np.random.default_rng(1).permutation(len(batch.group_M)))
    assert torch.equal(weights(permuted, mode), weights(batch, mode)[torch.from_numpy(old_A)])


@pytest.mark.parametrize("mode", MODES)
def test_micro_batches_add_up(mode: Reducer) -> None:
    """A tiny policy: the gradient of any cut, also inside a turn, is that of the whole batch."""
    batch = random_batch(np.random.default_rng(4))
    generator = torch.Generator().manual_seed(0)
    a = len(batch.turn_A)
    features = torch.randn(a, 5, generator=generator, dtype=torch.float64)
    old = torch.full((a,), -1.0, dtype=torch.float64)
    advantage = torch.randn(a, generator=generator, dtype=torch.float64)
    w = weights(batch, mode)

    def gradient(cuts: list[torch.Tensor]) -> torch.Tensor:
        theta = torch.linspace(-1, 1, 5, dtype=torch.float64, requires_grad=True)
        for rows in cuts:
            loss_A, _ = ppo_clip(torch.nn.functional.logsigmoid(features[rows] @ theta), old[rows], advantage[rows])
            (w[rows] * loss_A).sum().backward()
        return theta.grad

    expected = gradient([torch.arange(a)])
    shuffled = torch.randperm(a, generator=generator)
    assert expected.abs().sum() > 0
    for size in (1, 2, 3, 7):
        assert torch.allclose(gradient(list(shuffled.split(size))), expected, rtol=1e-10, atol=1e-14)


def test_observation_tokens_get_no_gradient_even_if_nan() -> None:
    """Action tokens are picked from the packed logits by index; the rest is never multiplied by a mask."""
    logits = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits[[0, 3]] = torch.nan
    logits.requires_grad_()
    actions, tokens = torch.tensor([1, 2, 4, 5]), torch.tensor([0, 3, 1, 2])
    new = torch.log_softmax(logits[actions], -1)[torch.arange(4), tokens]
    loss_A, _ = ppo_clip(new, new.detach(), tensor(1, -1, 2, 0.5))
    (weights(toy_batch([[0, 0]], tokens=2), "token_mean") * loss_A).sum().backward()
    assert torch.equal(logits.grad[[0, 3]], torch.zeros(2, 4, dtype=torch.float64))
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("mode", MODES)
def test_loss_of_an_empty_batch(mode: Reducer) -> None:
    empty = tensor(grad=True)
    loss_A, metrics = ppo_clip(empty, empty.detach(), empty.detach(), dual_clip=3.0)
    loss = (weights(toy_batch([], tokens=0), mode) * (loss_A + kl(empty, empty.detach()))).sum()
    loss.backward()
    assert loss.item() == 0
    assert metrics == {}


def test_zero_advantage_gives_zero_loss() -> None:
    new, old = at_ratio(5, 1.5, 0.5)
    loss_A, _ = ppo_clip(new, old, tensor(0, 0, 0), dual_clip=3.0)
    loss_A.sum().backward()
    assert loss_A.abs().tolist() == [0, 0, 0]
    assert new.grad.abs().tolist() == [0, 0, 0]
