"""OREO: the soft Bellman equation along a path, as a regression. The policy itself divides the reward among turns.

V(s_t) = R_t − β Σ_{i≥t} log π/π_ref(a_i) at the optimum of reward less β KL(π ‖ π_ref); R_t is the reward from t on.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import PositiveFloat
from torch import Tensor

from agentgym_trainers.batch import Batch
from agentgym_trainers.credit.segments import reverse_scan
from agentgym_trainers.losses.units import as_tensor, segment_sum

States = Literal["turn", "token"]


def oreo(
    logprob_A: Tensor,
    old_logprob_A: Tensor,
    batch: Batch,
    advantage_A: Tensor,
    weights_A: Tensor,
    *,
    beta: PositiveFloat = 0.03,
    states: States = "turn",
) -> tuple[Tensor, dict[str, Tensor]]:
    """(β [lr_t + sg Σ_{i>t} lr_i] + sg V(s_t) − R_t)², lr = log π/π_ref of a turn or token: the gradient is lr_t's.

    Wang et al. 2024 (OREO, 2412.16145) policy loss; the critic's is a regression to `path_value_target`. The paper adds
    α KL(π ‖ ref): `loss.kl`. A turn's loss is broadcast to its tokens and reduced: "turn_mean" is the mean over turns.
    Population: none beyond the reducer's. The advantage has no part in it. K = 1: the same. All-equal rewards: not 0,
    unless V already says so. Truncated: the value of the final observation (`bootstrap_M`) stands for the future.
    """
    log_ratio_A = logprob_A - as_tensor(batch.x["ref_logprob_A"], logprob_A)
    index_A, value, to_go = _states(batch, states)
    own_U = segment_sum(log_ratio_A, index_A, len(value))
    rest_U = _rest(own_U.detach(), batch, states)
    miss_U = beta * (own_U + rest_U) + as_tensor(value - to_go, logprob_A)
    loss = (weights_A * (miss_U**2)[as_tensor(index_A, logprob_A)]).sum()
    if not len(value):
        return loss, {}
    miss_U = miss_U.detach()
    return loss, {"path_error": (miss_U**2).mean().sqrt(), "path_bias": miss_U.mean()}


def path_value_target(
    logprob_A: np.ndarray, batch: Batch, *, beta: float = 0.03, states: States = "turn"
) -> np.ndarray:
    """float64[N], or [A] with states="token": R_t − β Σ_{i≥t} lr_i, what OREO's critic should say of each state."""
    index_A, _, to_go = _states(batch, states, value=False)
    log_ratio = np.bincount(index_A, logprob_A - batch.x["ref_logprob_A"], minlength=len(to_go))
    return to_go - beta * reverse_scan(log_ratio, batch.traj_N if states == "turn" else batch.traj_A, 1.0)


def _states(batch: Batch, states: States, value: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each state: the state of each token, V, and the reward from it on."""
    last_N = np.where(batch.last_N, _after_M(batch)[batch.traj_N], 0.0)
    to_go_N = reverse_scan(batch.reward_N + last_N, batch.traj_N, 1.0)
    if states == "turn":
        return batch.turn_A, batch.x["value_N"] if value else to_go_N, to_go_N
    to_go_A = to_go_N[batch.turn_A]  # a turn's reward falls on its last token
    return np.arange(len(batch.turn_A)), batch.x["value_A"] if value else to_go_A, to_go_A


def _after_M(batch: Batch) -> np.ndarray:
    if not batch.truncated_M.any():
        return np.zeros(len(batch.truncated_M))
    return np.where(batch.truncated_M, batch.x["bootstrap_M"], 0.0)


def _rest(own_U: Tensor, batch: Batch, states: States) -> Tensor:
    """Σ of the later states' log-ratios, without one's own."""
    own = own_U.cpu().numpy().astype(np.float64)
    rest = reverse_scan(own, batch.traj_N if states == "turn" else batch.traj_A, 1.0) - own
    return torch.from_numpy(rest).to(own_U.device, own_U.dtype)
