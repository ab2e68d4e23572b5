"""Log-probabilities and entropies of rows under a model, without gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from agentgym_trainers.data.sequences import Row
from agentgym_trainers.nn.forward import micro_batches, pack, token_logprobs


def score_tokens(
    model: Any, rows: Sequence[Row], size: int, *, budget: int, temperature: float
) -> tuple[np.ndarray, np.ndarray]:
    """(log-probability, entropy of the distribution), float64[size] each, at the rows' `action_index`; else 0.

    model: given `use_packed_attention`. budget: tokens of a micro-batch.
    """
    logprob_A, entropy_A = np.zeros(size), np.zeros(size)
    with torch.inference_mode():
        for part in micro_batches([row for row in rows if len(row.action_at)], budget):
            packed = pack(part, model)
            scores = token_logprobs(model, packed, temperature)
            logprob_A[packed.index] = scores.logprob.cpu().numpy()
            entropy_A[packed.index] = scores.entropy.cpu().numpy()
    return logprob_A, entropy_A
