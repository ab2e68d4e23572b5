"""One packed forward: rows laid end to end, logits only where an action token is predicted.

Shapes: T packed tokens, A action tokens of the batch; lower-case k, "of these rows".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentgym_trainers.attention import Segments, at_least_float32, positions
from agentgym_trainers.rows import Row


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows as one sequence of a model that was given `use_packed_attention`."""

    inputs: dict[str, Any]
    """What a transformers model's forward takes."""
    ids: Tensor
    """int64[T]"""
    starts: np.ndarray
    """int64[rows]: where each row begins."""
    at: Tensor
    """int64[k]: positions that predict an action token; the token itself is one further."""
    index: np.ndarray
    """int64[k]: the tokens' places among the batch's action tokens."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What a model says of action tokens."""

    logprob: Tensor
    """float[k]"""
    distribution: Tensor
    """float[k, V]: log-probabilities of the whole vocabulary."""
    hidden: Tensor | None
    """float[T, H]: the last layer's states, where they were asked for."""

    @property
    def entropy(self) -> Tensor:
        """float[k]"""
        return -(self.distribution.exp() * self.distribution).sum(dim=-1)


def micro_batches(rows: Sequence[Row], budget: int) -> Iterator[list[Row]]:
    """Rows in order, cut where the next one would exceed the token budget."""
    part: list[Row] = []
    tokens = 0
    for row in rows:
        if part and tokens + len(row.ids) > budget:
            yield part
            part, tokens = [], 0
        part.append(row)
        tokens += len(row.ids)
    if part:
        yield part


def pack(rows: Sequence[Row], device: Any) -> Packed:
    """Lay rows end to end."""
    lengths = [len(row.ids) for row in rows]
    starts = np.cumsum([0, *lengths[:-1]])
    ids = torch.from_numpy(np.concatenate([row.ids for row in rows])).to(device)
    at = np.concatenate([row.action_at - 1 + start for row, start in zip(rows, starts, strict=True)])
    inputs = {
        "input_ids": ids[None],
        "position_ids": positions(lengths, device),
        "use_cache": False,
        "layout": Segments(lengths),
    }
    index = np.concatenate([row.action_index for row in rows])
    return Packed(inputs, ids, starts, torch.from_numpy(at).to(device), index)


def token_logprobs(model: Any, packed: Packed, temperature: float = 1.0, *, hidden: bool = False) -> Scores:
    """Log-probabilities of the action tokens at the temperature that they were sampled with."""
    out = model(**packed.inputs, logits_to_keep=packed.at, output_hidden_states=hidden)
    distribution = torch.log_softmax(at_least_float32(out.logits[0]) / temperature, dim=-1)
    logprob = distribution.gather(1, packed.ids[packed.at + 1][:, None])[:, 0]
    return Scores(logprob, distribution, out.hidden_states[-1][0] if hidden else None)
