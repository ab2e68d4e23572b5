"""Regularizers: EPO's entropy band."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from agentgym_trainers.losses.entropy_band import (
    EntropyBand,
    EntropyBandOptions,
    band_penalty,
    entropy_band,
)


def tensor(*numbers: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=grad)


def entropy_of(logits: torch.Tensor) -> torch.Tensor:
    distribution = torch.log_softmax(logits, -1)
    return -(distribution.exp() * distribution).sum(-1)


# ---- EPO ----------------------------------------------------------------------------------------------------------


def test_hinge_band_numbers() -> None:
    entropy_A = tensor(0.5, 1.0, 3.0, grad=True)
    penalty = band_penalty(entropy_A, 1.0, low=0.8, high=1.2, penalty=0.1)
    assert penalty.tolist() == pytest.approx([0.03, 0, 0.18])
    penalty.sum().backward()
    assert entropy_A.grad.tolist() == pytest.approx([-0.1, 0, 0.1])


@pytest.mark.parametrize(("mean", "direction"), [(0.2, -1), (5.0, 1)])
def test_a_step_on_the_hinge_brings_entropy_towards_the_band(mean, direction) -> None:
    """Above the band entropy falls, below it rises: the penalty alone, and with the bonus beside it."""
    for loss in (
        lambda h: band_penalty(h, mean).sum(),
        lambda h: entropy_band(h, mean, EntropyBandOptions()).sum(),
    ):
        logits = tensor(0.3, -0.2, 0.9, grad=True)
        before = entropy_of(logits[None])
        loss(before).backward()
        after = entropy_of((logits - 0.1 * logits.grad)[None])
        assert np.sign((after - before).item()) == direction


def test_the_phase_weight_scales_the_penalty_and_not_the_bonus() -> None:
    entropy_A = tensor(3.0, grad=True)
    for weight, gradient in ((1.0, 1.0), (0.5, 0.0), (0.0, -1.0)):
        (found,) = torch.autograd.grad(entropy_band(entropy_A, 1.0, EntropyBandOptions(weight=weight)).sum(), entropy_A)
        assert found.item() == gradient


def test_inside_the_band_only_the_bonus_acts() -> None:
    entropy_A = tensor(1.0, 1.1, grad=True)
    entropy_band(entropy_A, 1.0, EntropyBandOptions()).sum().backward()
    assert entropy_A.grad.tolist() == [-1, -1]


def test_without_a_history_there_is_no_penalty() -> None:
    history = EntropyBand()
    assert history.mean is None
    assert band_penalty(tensor(0.0, 9.0), history.mean).tolist() == [0, 0]


def test_history_is_the_mean_of_all_steps_and_survives_a_resume() -> None:
    history = EntropyBand()
    for entropy in (1.0, float("nan"), 2.0):
        history.add(entropy)
    assert history.mean == 1.5
    resumed = EntropyBand()
    resumed.load_state_dict(history.state_dict())
    for each in (history, resumed):
        each.add(3.0)
    assert history.mean == resumed.mean == 2.0


def test_band_bounds_are_in_order() -> None:
    with pytest.raises(ValidationError, match="above"):
        EntropyBandOptions(low=1.3)


def test_band_does_not_leak_between_tokens() -> None:
    entropy_A = tensor(float("nan"), 3.0, grad=True)
    entropy_band(entropy_A, 1.0, EntropyBandOptions())[1].backward()
    assert entropy_A.grad.tolist() == [0, 1]
