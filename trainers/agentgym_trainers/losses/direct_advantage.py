"""Direct Advantage Policy Optimization: each turn's log-ratio is fitted to its advantage, as a regression."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import PositiveFloat
from torch import Tensor

from agentgym_credit.batch import Batch
from agentgym_trainers.data.token_segments import as_tensor, segment_sum


def direct_advantage(
    logprob_A: Tensor,
    old_logprob_A: Tensor,
    batch: Batch,
    advantage_A: Tensor,
    weights_A: Tensor,
    *,
    beta: PositiveFloat = 0.5,
) -> tuple[Tensor, dict[str, Tensor]]:
    """(β lr_t − A_t)² / 2β, lr_t = Σ_j (ℓ − ℓ_old)_j over the tokens of turn t, A_t the mean of its tokens' advantages.

    Liu et al. 2024 (Direct Advantage Policy Optimization, 2412.18279; not the DAPO of 2503.14476), a turn being a step:
    the least-squares form of π ∝ π_old exp(A / β). No ratio is clipped: the square pulls back what has gone far enough.
    Published offline, with a critic that was trained before; here the advantage is any assigner's, online or not.
    A turn's loss is broadcast to its tokens and reduced: "turn_mean" is the mean over turns. Tokens without a weight,
    as those too old to learn from, are no part of a turn. Population: none beyond the reducer's. On policy:
    −A_t ∇ Σ_j ℓ_j, the policy gradient of a turn as one action.
    """
    n = len(batch.traj_N)
    kept = torch.nonzero(weights_A).squeeze(1)
    turn = batch.turn_A[kept.numpy(force=True)]
    ratio_N = segment_sum((logprob_A - old_logprob_A)[kept], turn, n)
    advantage_N = segment_sum(advantage_A.detach()[kept], turn, n)
    advantage_N = advantage_N / as_tensor(np.maximum(np.bincount(turn, minlength=n), 1), advantage_N)
    miss_N = beta * ratio_N - advantage_N
    loss = (weights_A * (miss_N**2 / (2 * beta))[as_tensor(batch.turn_A, logprob_A)]).sum()
    if not n:
        return loss, {}
    return loss, {"advantage_error": torch.sqrt((miss_N.detach() ** 2).mean())}
