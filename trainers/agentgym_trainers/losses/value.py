"""Losses of critics: by regression, or by classification over a support whose expectation is the value."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SIGMA_RATIO = 0.75
"""HL-Gauss' smoothing in bin widths: the paper's."""


def value_loss(value: Tensor, target: Tensor) -> Tensor:
    """½ (V − G)² for each value."""
    return (value - target) ** 2 / 2


def two_class_loss(logits: Tensor, target: Tensor) -> Tensor:
    """−(1 − G) log p_0 − G log p_1 for each value; G in [0, 1] is the chance of the second class, and V = p_1.

    `logits` [..., 2]. DigiRL's critics (2406.11896 §4.2), there with G = 0 or 1. A target outside [0, 1] has no such
    reading: it is clamped.
    """
    chance = target.clamp(0, 1)
    return categorical_loss(logits, torch.stack([1 - chance, chance], dim=-1))


def hl_gauss_loss(logits: Tensor, target: Tensor, edges: Tensor, sigma: float) -> Tensor:
    """Cross-entropy with the histogram of a Gaussian around each target; `logits` [..., len(edges) − 1].

    Farebrother et al. 2024 (Stop Regressing, 2403.03950) §3.1; Imani & White 2018 (HL-Gauss).
    """
    return categorical_loss(logits, hl_gauss_targets(target, edges, sigma))


def categorical_loss(logits: Tensor, probability: Tensor) -> Tensor:
    """−Σ_i p_i log softmax(logits)_i for each value."""
    return -(probability * torch.log_softmax(logits, dim=-1)).sum(dim=-1)


def hl_gauss_targets(target: Tensor, edges: Tensor, sigma: float) -> Tensor:
    """p_i = [Φ((e_{i+1} − y)/σ) − Φ((e_i − y)/σ)] / [Φ((e_m − y)/σ) − Φ((e_0 − y)/σ)], for each target y.

    Near an end of the support the mean of p is not y: a Gaussian cut there leans inwards. `padded_edges` leaves room
    for 3 σ beyond the values that a critic may be asked for. σ → 0 is one-hot. y is clamped to the support.
    """
    target = target.clamp(float(edges[0]), float(edges[-1]))
    mass = torch.erf((edges - target[..., None]) / (sigma * math.sqrt(2))).diff(dim=-1)
    return mass / mass.sum(dim=-1, keepdim=True)


def padded_edges(low: float, high: float, bins: int, ratio: float = SIGMA_RATIO) -> tuple[Tensor, float]:
    """(edges float64[bins + 1], σ): equal bins over [low, high] and as many beyond each end as 3 σ need.

    σ = ratio · width, so ⌈3 · ratio⌉ bins of padding at each end, whatever the width.
    """
    pad = math.ceil(3 * ratio)
    if high <= low or bins <= 2 * pad:
        raise ValueError(f"need low < high and more than {2 * pad} bins (the padding), not [{low}, {high}], {bins}")
    width = (high - low) / (bins - 2 * pad)
    return low + width * torch.arange(-pad, bins - pad + 1, dtype=torch.float64), ratio * width


def expectation(logits: Tensor, support: Tensor) -> Tensor:
    """Σ_i softmax(logits)_i · support_i: what a categorical critic says."""
    return (torch.softmax(logits, dim=-1) * support).sum(dim=-1)
