"""Gradient of each token, small enough to keep: a count sketch of ∂ log π(token) / ∂θ.

Every weight is given a bucket and a sign at random; the sketch sums each bucket. Inner products of sketches are those
of the gradients, without bias, with a relative error of about √(2 / width).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from agentgym_trainers.data.sequences import Row
from agentgym_trainers.nn.forward import pack, token_logprobs


def token_scores(
    model: Any,
    rows: Sequence[Row],
    tokens: int,
    *,
    temperature: float = 1.0,
    width: int = 1024,
    seed: int = 0,
    on_row: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """float32[A, width]: the sketch of every action token's score function. One backward pass a token."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    generator = torch.Generator().manual_seed(seed)
    size = sum(weight.numel() for weight in weights)
    bucket = torch.randint(width, (size,), generator=generator)
    sign = torch.randint(2, (size,), generator=generator).float() * 2 - 1
    sketch_AK = np.zeros((tokens, width), np.float32)
    for row in rows:
        if not len(row.action_at):
            continue
        logprob = token_logprobs(model, pack([row], model), temperature).logprob
        for k, place in enumerate(row.action_index.tolist()):
            parts = torch.autograd.grad(logprob[k], weights, retain_graph=k + 1 < len(logprob), allow_unused=True)
            flat = torch.cat(
                [
                    torch.zeros(weight.numel()) if part is None else part.reshape(-1).float().cpu()
                    for weight, part in zip(weights, parts, strict=True)
                ]
            )
            sketch_AK[place] = torch.zeros(width).index_add_(0, bucket, sign * flat).numpy()
        on_row()
    return sketch_AK
