"""Objectives whose ratio is a turn's or a trajectory's: they read the whole optimizer batch."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from agentgym_credit.batch import Batch
from agentgym_trainers.data.token_segments import Unit, as_tensor, segment_sum, unit_A
from agentgym_trainers.losses.objective import MAX_LOG_RATIO, DualClip, ppo_clip
from agentgym_trainers.losses.token import bounded


def ratio_clip(
    logprob_A: Tensor,
    old_logprob_A: Tensor,
    batch: Batch,
    advantage_A: Tensor,
    weights_A: Tensor,
    *,
    unit: Unit = "turn",
    ratio: Literal["sum", "mean"] = "sum",
    clip_low: PositiveFloat = 0.2,
    clip_high: PositiveFloat = 0.28,
    dual_clip: DualClip | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's clip on one ratio a turn (or a trajectory): all its tokens are kept or clipped together.

    s = exp(Σ_j log ρ_j), the ratio of the whole turn as one action, or with ratio="mean" exp(mean_j log ρ_j), the
    tokens' geometric mean. Token j has the loss max(−A_j ŝ_j, −A_j clip(ŝ_j)), ŝ_j = sg[s] · ρ_j / sg[ρ_j]: its value
    is s and its gradient s ∇ℓ_j, so that reducers weigh tokens as ever and A may differ between tokens.
    Turn-PPO (2512.17008) and iStar (2509.19199) with the sum over a turn. Population: the unit's tokens.
    On policy: the policy gradient, token by token, whatever the reducer.
    """
    index_A = unit_A(batch, unit)
    log_ratio_A = (logprob_A - old_logprob_A).detach()
    log_s_U = segment_sum(log_ratio_A, index_A, int(index_A.max(initial=-1)) + 1)
    if ratio == "mean":
        log_s_U = log_s_U / as_tensor(np.maximum(np.bincount(index_A), 1), log_s_U)
    log_s_A = log_s_U.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)[as_tensor(index_A, logprob_A)]
    straight_A = log_s_A + (logprob_A - logprob_A.detach())
    loss_A, metrics = ppo_clip(
        straight_A, torch.zeros_like(straight_A), advantage_A,
        clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip,
    )  # fmt: skip
    return (weights_A * loss_A).sum(), metrics


def gspo(
    logprob_A: Tensor,
    old_logprob_A: Tensor,
    batch: Batch,
    advantage_A: Tensor,
    weights_A: Tensor,
    *,
    unit: Unit = "trajectory",
    clip_low: PositiveFloat = 3e-4,
    clip_high: PositiveFloat = 4e-4,
) -> tuple[Tensor, dict[str, Tensor]]:
    """`ratio_clip` with the geometric mean of a trajectory's token ratios, and a clip range as narrow as it varies.

    s_i = exp(mean_j log ρ_j); Zheng et al. 2025 (GSPO, 2507.18071) in its token form; published with the reducer
    "trajectory_mean". Population: the tokens of the trajectory, or with unit="turn" of the turn. On policy with that
    reducer: −A ∇ℓ / n_i, the mean over trajectories aside.
    """
    return ratio_clip(
        logprob_A, old_logprob_A, batch, advantage_A, weights_A,
        unit=unit, ratio="mean", clip_low=clip_low, clip_high=clip_high,
    )  # fmt: skip


def a_lol(
    logprob_A: Tensor,
    old_logprob_A: Tensor,
    batch: Batch,
    advantage_A: Tensor,
    weights_A: Tensor,
    *,
    ratio: Literal["turn", "trajectory", "token"] = "trajectory",
    clip: NonNegativeFloat = 0.9,
) -> tuple[Tensor, dict[str, Tensor]]:
    """−max(A, 0) · sg[clip(π / π_ref, 1 ± clip)] · ℓ: offline policy gradient, its weight from the frozen reference.

    Baheti et al. 2024 (A-LoL, 2305.14718): the ratio of the whole sequence, Π_j ρ_j over the trajectory (or the turn),
    or with ratio="token" each token's own (A-LoL seq. and A-LoL token). Population: the sequence's tokens.
    At π = π_ref: the policy gradient of the positive part of A. `awr` is the variant without a reference.
    """
    log_ratio_A = logprob_A.detach() - as_tensor(batch.x["ref_logprob_A"], logprob_A)
    if ratio != "token":
        index_A = unit_A(batch, ratio)
        sum_U = segment_sum(log_ratio_A, index_A, int(index_A.max(initial=-1)) + 1)
        log_ratio_A = sum_U[as_tensor(index_A, logprob_A)]
    rho_A = log_ratio_A.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    loss = (weights_A * -advantage_A.clamp(min=0) * bounded(rho_A, clip) * logprob_A).sum()
    if not len(rho_A):
        return loss, {}
    kept = advantage_A > 0
    outside = ((rho_A > 1 + clip) | (rho_A < 1 - clip)) & kept
    share = {"used": kept, "clipped": outside}
    return loss, {"ratio_max": rho_A.max(), **{name: part.to(rho_A.dtype).mean() for name, part in share.items()}}


def clip_cov(
    logprob_A: Tensor,
    old_logprob_A: Tensor,
    batch: Batch,
    advantage_A: Tensor,
    weights_A: Tensor,
    *,
    clip_low: PositiveFloat = 0.2,
    clip_high: PositiveFloat = 0.28,
    dual_clip: DualClip | None = None,
    fraction: NonNegativeFloat = 0.02,
    cov_low: float = 2.0,
    cov_high: float = 60.0,
    seed: NonNegativeInt = 0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's clip without some of the tokens that cost most entropy: those where A and ℓ are both far above average.

    cov_j = (A_j − mean A)(ℓ_j − mean ℓ); of the tokens with cov_low < cov < cov_high that PPO's clip leaves alone,
    ⌊fraction · A⌋ lose their loss. Cui et al. 2025 (Clip-Cov, 2505.22617); on replay in SPEAR (2509.22601).
    Population of both means: all tokens of the optimizer batch. On policy with fraction = 0: the policy gradient.

    Which of them is a rule, not a draw: those whose recorded log-probability, hashed with `seed`, is smallest. It is as
    good as random, needs no generator to carry and to restore, and picks the same tokens in whatever order they come.
    """
    loss_A, metrics = ppo_clip(
        logprob_A, old_logprob_A, advantage_A, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    now_A = logprob_A.detach()
    ratio_A = (now_A - old_logprob_A).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    clipped_A = ((advantage_A > 0) & (ratio_A > 1 + clip_high)) | ((advantage_A < 0) & (ratio_A < 1 - clip_low))
    cov_A = (advantage_A - advantage_A.mean()) * (now_A - now_A.mean())
    gate_A = (cov_A > cov_low) & (cov_A < cov_high) & ~clipped_A
    candidates = np.flatnonzero(gate_A.cpu().numpy())
    count = int(fraction * len(now_A) + 1e-9)  # .29 · 100 is a little less than 29
    order = np.argsort(hashed(batch.logprob_A[candidates], seed), kind="stable")
    dropped_A = torch.zeros_like(gate_A)
    dropped_A[as_tensor(candidates[order[:count]], now_A)] = True
    if metrics:
        shares = {"cov_dropped": dropped_A, "cov_candidates": gate_A}
        metrics |= {name: part.to(now_A.dtype).mean() for name, part in shares.items()}
    kept_A = torch.where(dropped_A, torch.zeros_like(loss_A), loss_A)  # the denominators in the weights stay
    return (weights_A * kept_A).sum(), metrics


def hashed(logprob: np.ndarray, seed: int) -> np.ndarray:
    """uint64: the bits of each float32, mixed with the seed (splitmix64's finalizer: every bit decides every bit)."""
    x = np.asarray(logprob, np.float32).view(np.uint32).astype(np.uint64)
    x += np.array([seed * 0x9E3779B97F4A7C15 % 2**64], np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))
