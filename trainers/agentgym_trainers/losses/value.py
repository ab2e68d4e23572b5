"""Losses of critics."""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(value: Tensor, target: Tensor, old_value: Tensor | None = None, clip: float | None = None) -> Tensor:
    """½ (V − G)² for each value; with `clip`, ½ max((V − G)², (V_old + clip(V − V_old, ±clip) − G)²)."""
    loss = (value - target) ** 2
    if clip is not None:
        if old_value is None:
            raise ValueError("clip needs old_value: the values before this update")
        loss = torch.maximum(loss, (old_value + (value - old_value).clamp(-clip, clip) - target) ** 2)
    return loss / 2
