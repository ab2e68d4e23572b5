"""Log-probabilities and entropies of rows under a model, without gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from agentgym_trainers.data.sequences import Row
from agentgym_trainers.learner.fsdp import own_micro_batches
from agentgym_trainers.nn.forward import pack, token_logprobs
from agentgym_trainers.nn.process_group import SINGLE_PROCESS, DataParallel


def score_tokens(
    model: Any,
    rows: Sequence[Row],
    size: int,
    *,
    budget: int,
    temperature: float,
    processes: DataParallel = SINGLE_PROCESS,
) -> tuple[np.ndarray, np.ndarray]:
    """(log-probability, entropy of the distribution), float64[size] each, at the rows' `action_index`; else 0.

    model: given `use_packed_attention`. budget: tokens of a micro-batch. Each of `processes` forwards its share of the
    rows.
    """
    logprob_A, entropy_A = np.zeros(size), np.zeros(size)
    with torch.no_grad():  # not inference mode: slices of a model that learns too would be unusable afterwards
        for part in own_micro_batches([row for row in rows if len(row.action_at)], budget, processes, model):
            packed = pack(part, model)
            scores = token_logprobs(model, packed, temperature)
            logprob_A[packed.index] = scores.logprob.cpu().numpy()
            entropy_A[packed.index] = scores.entropy.cpu().numpy()
    for column in (logprob_A, entropy_A):
        processes.sum(torch.from_numpy(column))
    return logprob_A, entropy_A
