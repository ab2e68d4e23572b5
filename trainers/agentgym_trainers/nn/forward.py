"""One packed forward: rows as a tree, logits only where an action token is predicted.

Shapes: T tokens of the tree, A action tokens of the batch; lower-case k, "of these rows", and u of those k the places
that differ: attempts may say the same at the same place. V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentgym_trainers.data.sequences import Row
from agentgym_trainers.nn.attention import at_least_float32, layout_of
from agentgym_trainers.nn.prefix_tree import common, in_order, tree_of


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows as one sequence of a model that was given `use_packed_attention`."""

    inputs: dict[str, Any]
    """Arguments of a transformers model's forward."""
    ids: Tensor
    """int64[T]"""
    places: list[np.ndarray]
    """Positions of each row's tokens among the T, int64[its length]."""
    at: Tensor
    """int64[k]: where an action token is predicted."""
    own: Tensor
    """int64[k]: where it stands; of a row that is only read up to there, its last token."""
    index: np.ndarray
    """int64[k]: the tokens' places among the batch's action tokens."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities and entropy of action tokens."""

    logprob: Tensor
    """float[k]"""
    distribution: Tensor
    """float[u, V]: log-probabilities of the whole vocabulary."""
    which: Tensor
    """int64[k]: of the u, each action token's own."""

    @property
    def entropy(self) -> Tensor:
        """float[k]"""
        return -(self.distribution.exp() * self.distribution).sum(dim=-1)[self.which]


def micro_batches(rows: Sequence[Row], budget: int) -> Iterator[list[Row]]:
    """Rows that begin alike together, cut where the next one's own tokens would exceed the budget."""
    part: list[Row] = []
    tokens = 0
    for i in in_order([row.ids for row in rows]):
        row = rows[i]
        own = len(row.ids) - (common(part[-1].ids, row.ids) if part else 0)
        if part and tokens + own > budget:
            yield part
            part, tokens, own = [], 0, len(row.ids)
        part.append(row)
        tokens += own
    if part:
        yield part


def pack(rows: Sequence[Row], device: Any) -> Packed:
    """Lay rows over each other as far as they begin alike."""
    tree = tree_of([row.ids for row in rows])
    ids = torch.from_numpy(tree.ids_T).to(device)
    pairs = list(zip(rows, tree.places, strict=True))
    at = np.concatenate([place[row.action_at - 1] for row, place in pairs])
    own = np.concatenate([place[np.minimum(row.action_at, len(place) - 1)] for row, place in pairs])
    inputs = {
        "input_ids": ids[None],
        "position_ids": torch.from_numpy(tree.position_T).to(device)[None],
        "use_cache": False,
        "layout": layout_of(tree, device),
    }
    index = np.concatenate([row.action_index for row in rows])
    return Packed(inputs, ids, tree.places, torch.from_numpy(at).to(device), torch.from_numpy(own).to(device), index)


def token_logprobs(model: Any, packed: Packed, temperature: float = 1.0) -> Scores:
    """Log-probabilities of the action tokens at the temperature that they were sampled with."""
    at, which = torch.unique(packed.at, return_inverse=True)
    out = model(**packed.inputs, logits_to_keep=at)
    distribution = torch.log_softmax(at_least_float32(out.logits[0]) / temperature, dim=-1)
    logprob = distribution[which, packed.ids[packed.own]]
    return Scores(logprob, distribution, which)
