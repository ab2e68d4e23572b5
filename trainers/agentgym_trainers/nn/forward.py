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
from agentgym_trainers.nn.prefix_tree import PrefixTree, common, in_order, tree_of
from agentgym_trainers.nn.vision import image_inputs, reader_of, rope_positions, without_placeholder


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
    keys = [row.keys for row in rows]
    last = keys[0] if keys else np.zeros(0, np.int64)
    for i in in_order(keys):
        own = len(keys[i]) - (common(last, keys[i]) if part else 0)
        if part and tokens + own > budget:
            yield part
            part, tokens, own = [], 0, len(keys[i])
        part.append(rows[i])
        tokens, last = tokens + own, keys[i]
    if part:
        yield part


def pack(rows: Sequence[Row], model: Any) -> Packed:
    """Lay rows over each other as far as they begin alike, for a forward of `model`, or of a trunk."""
    device, reader = model.device, reader_of(model)
    tree = tree_of([row.keys for row in rows])
    pairs = list(zip(rows, tree.places, strict=True))
    at = np.concatenate([place[row.action_at - 1] for row, place in pairs])
    own = np.concatenate([place[np.minimum(row.action_at, len(place) - 1)] for row, place in pairs])
    if reader is None:
        inputs = {
            "input_ids": torch.from_numpy(tree.keys_T).to(device)[None],
            "position_ids": torch.from_numpy(tree.position_T).to(device)[None],
        }
    else:
        inputs = image_inputs(reader, tree.keys_T, _images_in_order(rows, tree), device)
        position_3T = np.empty((3, len(tree.keys_T)), np.int64)
        for row, place in pairs:
            position_3T[:, place] = rope_positions(model, len(row.ids), row.images)
        inputs["position_ids"] = torch.from_numpy(position_3T).to(device)[:, None]
    ids = inputs["input_ids"][0]
    inputs = {**inputs, "use_cache": False, "layout": layout_of(tree, device)}
    index = np.concatenate([row.action_index for row in rows])
    return Packed(inputs, ids, tree.places, torch.from_numpy(at).to(device), torch.from_numpy(own).to(device), index)


def _images_in_order(rows: Sequence[Row], tree: PrefixTree) -> list[bytes]:
    """The PNGs of the tree's images, by place: those that rows share once."""
    found = {
        int(place[image.start]): image.png for row, place in zip(rows, tree.places, strict=True) for image in row.images
    }
    return [found[place] for place in sorted(found)]


def token_logprobs(model: Any, packed: Packed, temperature: float = 1.0) -> Scores:
    """Log-probabilities of the action tokens at the temperature that they were sampled with."""
    at, which = torch.unique(packed.at, return_inverse=True)
    out = model(**packed.inputs, logits_to_keep=at)
    logits = without_placeholder(at_least_float32(out.logits[0]), model)
    distribution = torch.log_softmax(logits / temperature, dim=-1)
    logprob = distribution[which, packed.ids[packed.own]]
    return Scores(logprob, distribution, which)
