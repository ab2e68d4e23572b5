"""Defects found in published implementations of losses: the defective variant, written out, and how it is caught."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agentgym_trainers.learner.full_batch_gradient import backward_full_batch
from agentgym_trainers.losses import kl, ppo_clip, token_weights
from agentgym_trainers.losses.classification import pacs
from agentgym_trainers.losses.entropy_band import EntropyBandOptions, band_penalty, entropy_band
from agentgym_trainers.losses.importance import CorrectOptions, apply
from agentgym_trainers.losses.pairs import dpo
from agentgym_trainers.losses.sequence import ratio_clip
from agentgym_trainers.losses.token import cispo
from agentgym_trainers.testing import toy_batch


def tensor(*numbers: float, grad: bool = False) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=grad)


# ---- GRPO: k3 as a loss -------------------------------------------------------------------------------------------


def kl_gradient_in_expectation(estimator: str) -> tuple[Tensor, Tensor]:
    """(the estimator's, summed over a vocabulary with its probabilities; the gradient of KL(π ‖ ref) itself)."""
    logits, ref = tensor(0.3, -0.2, 0.9, grad=True), torch.log_softmax(tensor(0.5, 0.1, -1), 0)
    new = torch.log_softmax(logits, 0)
    (exact,) = torch.autograd.grad((new.exp() * (new - ref)).sum(), logits, retain_graph=True)
    (found,) = torch.autograd.grad((new.detach().exp() * kl(new, ref, estimator)).sum(), logits)
    return found, exact


def test_k3_as_a_loss_is_caught_and_ours_is_the_kl_gradient() -> None:
    defective, exact = kl_gradient_in_expectation("k3")
    assert not torch.allclose(defective, exact, rtol=0.2)
    ours, exact = kl_gradient_in_expectation("k3+")
    torch.testing.assert_close(ours, exact)


# ---- EPO: a penalty without a gradient ----------------------------------------------------------------------------


def moves(penalty_of) -> float:
    """By how much a gradient step on the penalty alone changes an entropy that is far above the band."""
    logits = torch.zeros(1, 8, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        logits[0, 0] = 0.5

    def entropy() -> Tensor:
        distribution = torch.log_softmax(logits, -1)
        return -(distribution.exp() * distribution).sum(-1)

    before = entropy()
    penalty = penalty_of(before).sum()
    if not penalty.requires_grad:
        return 0.0
    (gradient,) = torch.autograd.grad(penalty, logits)
    with torch.no_grad():
        logits -= gradient
    return (entropy() - before).item()


def released_penalty(entropy_A: Tensor, mean: float, penalty: float) -> Tensor:
    """A constant on each side of the band, as released."""
    return penalty * ((entropy_A > 1.2 * mean) | (entropy_A < 0.8 * mean)).to(entropy_A.dtype)


def test_epo_as_released_does_nothing_and_the_hinge_does() -> None:
    assert moves(lambda h: released_penalty(h, 0.5, 0.1)) == 0
    assert moves(lambda h: band_penalty(h, 0.5, penalty=0.1)) < -1e-4
    # Beside the bonus, too: as released the entropy above the band goes on rising, whatever the penalty.
    assert moves(lambda h: entropy_band(h, 0.5, EntropyBandOptions(weight=0)) + released_penalty(h, 0.5, 9.0)) > 1e-4
    assert moves(lambda h: entropy_band(h, 0.5, EntropyBandOptions())) < -1e-4


# ---- PACS: the mask that is not applied ---------------------------------------------------------------------------


def padded_pacs(difference: Tensor, mask: Tensor, labels: Tensor, *, masked: bool) -> Tensor:
    """Rows of one length: r̂ sums a row's log-ratios, as released over padding and observations too."""
    score = (torch.where(mask, difference, torch.zeros_like(difference)) if masked else difference).sum(-1)
    psi = score - (score.sum() - score) / (len(score) - 1)
    return torch.nn.functional.binary_cross_entropy_with_logits(psi, labels)


@pytest.mark.parametrize("masked", [True, False])
def test_pacs_unmasked_sum_is_caught(masked) -> None:
    """Whatever padding and observations say, ours sees action tokens only; the unmasked sum is caught."""
    mask = torch.tensor([[True, False, True], [True, False, False]])
    labels = tensor(1, 0)
    batch = toy_batch([[1], [0]], tokens=[2, 1], success_M=[1, 0])
    found = []
    for junk in (0.0, 5.0):
        difference = torch.tensor([[0.2, junk, 0.3], [-0.1, 3 * junk, junk]], dtype=torch.float64)
        new = difference[mask].requires_grad_()
        zero = torch.zeros_like(new).detach()
        ours = pacs(new, zero, batch, zero, zero)[0].item()
        assert ours == pytest.approx(0.437488, abs=1e-6)
        found.append(padded_pacs(difference, mask, labels, masked=masked).item())
    agrees = found[1] == pytest.approx(0.437488, abs=1e-6)
    assert agrees == masked


# ---- iStar: scores detached before the loss -----------------------------------------------------------------------


class StandIn(nn.Module):
    """A process reward model of one parameter: the step log-ratios of two attempts, scaled by it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.steps = tensor(0.2, 0.1, 0.3, -0.1, 0.0, -0.2)

    def forward(self, index: np.ndarray) -> Tensor:
        return self.scale * self.steps[torch.from_numpy(index)]


def released_update(model: StandIn, batch, rows: list[np.ndarray]) -> float:
    """As released: the scores of each micro-batch are collected detached, and the leaf is told to want a gradient."""
    column = torch.cat([model(index).detach() for index in rows]).requires_grad_()
    loss = preference(column, batch)
    loss.backward()
    return loss.item()


def preference(column: Tensor, batch) -> Tensor:
    nothing = torch.zeros_like(column).detach()
    return dpo(column, nothing, batch, nothing, nothing, beta=0.05, score="turn_mean")[0]


def test_a_detached_leaf_is_caught() -> None:
    batch = toy_batch([[0, 0, 1], [0, 0, 0]], ref_logprob_A=[0.0] * 6)
    rows = [np.arange(3), np.arange(3, 6)]
    released = StandIn()
    assert released_update(released, batch, rows) == pytest.approx(0.685675, abs=1e-6)
    assert released.scale.grad is None  # the loss is right and its backward succeeds: only the gradient tells
    ours = StandIn()
    loss, _ = backward_full_batch(
        lambda index: (index, ours(index)), rows, 6, lambda column: (preference(column, batch), {})
    )
    assert loss == pytest.approx(0.685675, abs=1e-6)
    assert ours.scale.grad.item() == pytest.approx(-0.007444, abs=1e-6)


# ---- AReaL: a correction that is not applied ----------------------------------------------------------------------


def decoupled_gradient(weight_A: np.ndarray) -> float:
    new, prox = tensor(-1, grad=True), tensor(-1.1)
    (torch.from_numpy(weight_A) * ppo_clip(new, prox, tensor(1))[0]).sum().backward()
    return new.grad.item()


def test_areal_a_weight_that_is_not_applied_is_caught() -> None:
    """π_θ / π_behavior = e^.5: with the released default the gradient is of another ratio, π_θ / π_prox."""
    prox, behavior, batch = np.array([-1.1]), np.array([-1.5]), toy_batch([[1]])
    weight_A, _ = apply(CorrectOptions(kind="tis", cap=5.0), prox, behavior, batch)
    assert decoupled_gradient(weight_A) == pytest.approx(-np.exp(0.5))
    assert decoupled_gradient(np.ones(1)) != pytest.approx(-np.exp(0.5), rel=0.3)
    assert (apply(CorrectOptions(), prox, behavior, batch)[0] != 1).all()  # a [correct] table without more corrects


# ---- others -------------------------------------------------------------------------------------------------------


def test_cispo_a_distance_given_as_a_ratio_is_caught() -> None:
    """1 ± ε = (.8, 1.28) of verl and slime: .28 as the cap itself would shrink every on-policy gradient to .28."""
    for ratio_max, faithful in ((1.28, True), (0.28, False)):
        new = tensor(-1, grad=True)
        cispo(new, new.detach(), tensor(1), ratio_max=ratio_max)[0].backward()
        assert (new.grad.item() == pytest.approx(-1)) == faithful


def test_micro_batches_that_average_by_themselves_are_caught() -> None:
    """A mean over each micro-batch's tokens, averaged, weighs tokens of small micro-batches more."""
    batch = toy_batch([[0], [0]], tokens=[4, 1])
    loss_A = tensor(1, 1, 1, 1, 4)
    cuts = [slice(0, 4), slice(4, 5)]
    weights = torch.from_numpy(token_weights(batch, "token_mean"))
    ours = sum((weights[cut] * loss_A[cut]).sum().item() for cut in cuts)
    naive = sum(loss_A[cut].mean().item() for cut in cuts) / len(cuts)
    assert ours == pytest.approx(loss_A.mean().item())
    assert naive == pytest.approx(2.5)


def test_a_turn_ratio_over_a_row_s_tokens_is_caught() -> None:
    """With turns inferred from nothing (one ratio a row), a change in one turn clips another that did not change."""
    batch = toy_batch([[0, 1]], tokens=2)
    old = tensor(-1, -1, -1, -1)
    weights = torch.from_numpy(token_weights(batch, "token_mean"))
    for unit, kept in (("turn", True), ("trajectory", False)):
        new = (old + tensor(0.5, 0.5, 0, 0)).requires_grad_()
        ratio_clip(new, old, batch, tensor(1, 1, 1, 1), weights, unit=unit)[0].backward()
        assert (new.grad[:2] == 0).all()
        assert bool((new.grad[2:] == -0.25).all()) == kept
