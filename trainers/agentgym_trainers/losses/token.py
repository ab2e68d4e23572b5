"""Objectives of one loss a token, other than PPO's: each on any slice of a batch's tokens."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from agentgym_trainers.losses.objective import MAX_LOG_RATIO, ppo_clip


def cispo(
    logprob_A: Tensor,
    old_logprob_A: Tensor,
    advantage_A: Tensor,
    *,
    ratio_max: PositiveFloat = 5.0,
    ratio_min: NonNegativeFloat = 0.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """−sg[clip(ρ, ratio_min, ratio_max)] · A · ℓ: the ratio is a bounded weight, and every token keeps its gradient.

    MiniMax 2025 (CISPO, 2506.13585). Both bounds are ratios, not distances from 1: 5 means 5; what others write
    as ε = .28 is 1.28 here. Population: none. On policy: the policy gradient.
    """
    if ratio_min > ratio_max:
        raise ValueError(f"ratio_min is {ratio_min}, and that is above ratio_max, {ratio_max}")
    ratio = _ratio(logprob_A, old_logprob_A)
    loss = -ratio.clamp(ratio_min, ratio_max) * advantage_A * logprob_A
    return loss, _capped(ratio, ratio > ratio_max, ratio < ratio_min)


def loop_clip(
    logprob_A: Tensor, old_logprob_A: Tensor, advantage_A: Tensor, *, clip: PositiveFloat = 0.1
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's clip with a range that is symmetric in log ρ: [1 / (1 + clip), 1 + clip].

    Chen et al. 2025 (LOOP, 2502.01600), per-token ratios. Population: none. On policy: the policy gradient.
    """
    return ppo_clip(logprob_A, old_logprob_A, advantage_A, clip_low=clip / (1 + clip), clip_high=clip)


def awr(
    logprob_A: Tensor,
    old_logprob_A: Tensor,
    advantage_A: Tensor,
    *,
    ratio: Literal["none", "token"] = "none",
    clip: NonNegativeFloat = 0.9,
) -> tuple[Tensor, dict[str, Tensor]]:
    """−max(A, 0) · w · ℓ, w = 1 or sg[clip(ρ, 1 ± clip)]: imitation of what was better than expected.

    Advantage-weighted regression; Baheti et al. 2024 (A-LoL, 2305.14718) without a reference ("none") or with token
    ratios to the policy that the tokens are from. `a_lol` has its sequence ratios. With advantages of 0 and 1 it is
    filtered behavior cloning. Population: none. On policy: the policy gradient of the positive part of A.
    """
    weight, metrics = torch.ones_like(logprob_A), {}
    if ratio == "token":
        rho = _ratio(logprob_A, old_logprob_A)
        weight, metrics = bounded(rho, clip), _capped(rho, rho > 1 + clip, rho < 1 - clip)
    loss = -advantage_A.clamp(min=0) * weight * logprob_A
    if len(advantage_A):
        metrics["used"] = (advantage_A > 0).to(logprob_A.dtype).mean()
    return loss, metrics


def bounded(ratio: Tensor, clip: float) -> Tensor:
    """clip(ratio, 1 ± clip): A-LoL's importance weight."""
    return ratio.clamp(1 - clip, 1 + clip)


def _ratio(logprob_A: Tensor, old_logprob_A: Tensor) -> Tensor:
    return (logprob_A - old_logprob_A).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _capped(ratio: Tensor, high: Tensor, low: Tensor) -> dict[str, Tensor]:
    if not len(ratio):
        return {}
    shares = {"clip_low": low.to(ratio.dtype).mean(), "clip_high": high.to(ratio.dtype).mean()}
    kl_old = (ratio - 1 - ratio.log()).mean()
    return {**shares, "ratio_mean": ratio.mean(), "ratio_max": ratio.max(), "kl_old": kl_old}
