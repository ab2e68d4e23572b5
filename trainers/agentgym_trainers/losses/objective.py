"""Policy objectives: a loss for each action token, and metrics that are detached means over the tokens given."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

DualClip = Annotated[float, Field(gt=1)]
"""Bound of a ratio where the advantage is negative. At 1 or below such tokens have no gradient on policy."""

MAX_LOG_RATIO = 20.0
"""exp(20) ≈ 5e8 is finite in float32 and still far outside any clip range."""


def policy_gradient(logprob_A: Tensor, old_logprob_A: Tensor, advantage_A: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """−A · ℓ: the policy gradient where the tokens were sampled from this policy; imitation where A is 1."""
    return -advantage_A * logprob_A, {}


def ppo_clip(
    logprob_A: Tensor,
    old_logprob_A: Tensor,
    advantage_A: Tensor,
    *,
    clip_low: NonNegativeFloat = 0.2,
    clip_high: NonNegativeFloat = 0.28,
    dual_clip: DualClip | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """max(−A ρ, −A clip(ρ, 1 − clip_low, 1 + clip_high)), ρ = exp(ℓ − ℓ_old); Schulman et al. 2017 (1707.06347) eq. 7.

    `dual_clip` c > 1 bounds the loss by −A c where A < 0 (Ye et al. 2020, 1912.09729). clip_high > clip_low is
    DAPO's clip-higher (2503.14476).
    """
    ratio = (logprob_A - old_logprob_A).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    loss = torch.maximum(-advantage_A * ratio, -advantage_A * ratio.clamp(1 - clip_low, 1 + clip_high))
    if dual_clip is not None:
        loss = torch.where(advantage_A < 0, torch.minimum(loss, -advantage_A * dual_clip), loss)
    return loss, _ratio_metrics(ratio.detach(), advantage_A.detach(), clip_low, clip_high)


def _ratio_metrics(ratio: Tensor, advantage: Tensor, clip_low: float, clip_high: float) -> dict[str, Tensor]:
    if not len(ratio):
        return {}
    return {
        "clip_low": ((advantage < 0) & (ratio < 1 - clip_low)).to(ratio.dtype).mean(),
        "clip_high": ((advantage > 0) & (ratio > 1 + clip_high)).to(ratio.dtype).mean(),
        "ratio_mean": ratio.mean(),
        "ratio_max": ratio.max(),
        "kl_old": (ratio - 1 - ratio.log()).mean(),  # k3 of KL(old ‖ new): the tokens are old's, ratio is new / old
    }
