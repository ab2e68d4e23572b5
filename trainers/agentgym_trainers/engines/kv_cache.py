"""The in-process engine's key-value cache, and attention to it.

Shapes: S slots, B requests in a forward, T their new tokens, R rows of the attention (a request's each, and idle slots
between), Q the most new tokens of one, P positions of a common prefix, L cached positions, Hq/Hk query/key heads,
D head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from agentgym_trainers.nn.attention import at_least_float32

PREFIX_ATTENTION_MIN = 2048
"""Positions, of all rows, from which on it is faster to attend to a common prefix by itself."""


class BatchedCache:
    """Keys and values: one [S, L, Hk, D] tensor a layer each, so that a token's entry is one run of memory."""

    def __init__(self, model: Any, slots: int, length: int) -> None:
        config = model.config.get_text_config()
        heads = key_heads(config)
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape, kind = (slots, length, heads, size), {"dtype": model.dtype, "device": model.device}
        self.length = length
        self.shared = np.zeros(slots, np.int64)
        """Number of first positions that each slot shares with the slot that holds the common prefix."""
        self.keys = [torch.zeros(shape, **kind) for _ in range(config.num_hidden_layers)]
        self.values = [torch.zeros(shape, **kind) for _ in range(config.num_hidden_layers)]

    def put(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.keys[0].device)

    def copy(self, source: int, target: int, length: int) -> None:
        """The first `length` positions of one slot into another."""
        for store in (*self.keys, *self.values):
            store[target, :length] = store[source, :length]

    def overwrite(self, slot: int, start: int) -> None:
        """Overwrite a slot from a position on."""
        self.shared[slot] = min(self.shared[slot], start)

    def clean(self) -> None:
        """Forget what is not finite: beyond a sequence's end it is masked, but NaN times zero is NaN."""
        for store in (*self.keys, *self.values):
            torch.nan_to_num_(store, 0.0, 0.0, 0.0)


class CachedLayout:
    """New tokens of several sequences, attending to their cached past."""

    def __init__(
        self, cache: BatchedCache, counts: np.ndarray, starts: np.ndarray, slots: np.ndarray, prefix: int, groups: int
    ) -> None:
        """`counts`, `starts` and `slots`: int[B], of each request's new tokens; those of one token come first.
        `prefix`: the slot of what first prompts share. `groups`: query heads to a key head."""
        self.cache = cache
        ends = np.cumsum(counts)
        position_T = np.repeat(starts + counts - ends, counts) + np.arange(ends[-1])
        self.position_T, self.last_B = cache.put(position_T), cache.put(ends - 1)
        self.place_T = cache.put(np.repeat(slots, counts) * cache.length + position_T)
        single = int((counts == 1).sum())  # apart, lest their queries are padded to the length of an observation
        parts = [part for part in (slice(0, single), slice(single, None)) if len(counts[part])]
        self.blocks = [_Block(cache, counts[part], starts[part], slots[part], prefix, groups) for part in parts]
        self.sizes = [int(counts[part].sum()) for part in parts]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        for store, new in ((keys, key), (values, value)):
            store.flatten(0, 1).index_copy_(0, self.place_T, new.transpose(0, 1))
        queries = query.transpose(0, 1).split(self.sizes)
        outs = [block.attend(part, keys, values, scale) for block, part in zip(self.blocks, queries, strict=True)]
        return torch.cat(outs).transpose(0, 1)


class _Block:
    """Requests whose queries are padded to the same length Q and computed together. Keys and values of the prefix that
    all of them share are read once for all, not once for each: reading them is most of what sampling a token costs."""

    def __init__(
        self, cache: BatchedCache, counts: np.ndarray, starts: np.ndarray, slots: np.ndarray, prefix: int, groups: int
    ) -> None:
        low, high = int(slots.min()), int(slots.max()) + 1
        # Slots side by side are read as a view, idle ones between them included; only scattered ones are gathered,
        # which copies their whole past.
        dense = 2 * len(slots) >= high - low
        row_B = slots - low if dense else np.arange(len(slots))
        self.slots = slice(low, high) if dense else cache.put(slots)
        self.rows = high - low if dense else len(slots)
        self.most, self.prefix, self.shared = int(counts.max()), prefix, int(cache.shared[slots].min())
        if self.shared * self.rows < PREFIX_ATTENTION_MIN:
            self.shared = 0
        self.own = slice(self.shared, int((starts + counts).max()))
        row_T, offset_T = np.repeat(row_B, counts), np.concatenate([np.arange(count) for count in counts])
        self.padded_T = cache.put(row_T * self.most + offset_T)
        # A query sees the positions up to its own; padding queries see at most position 0, and are thrown away.
        limit_RQ = np.zeros((self.rows, self.most), np.int64)
        limit_RQ[row_T, offset_T] = np.repeat(starts, counts) + offset_T
        limit_RQ = np.tile(limit_RQ, (1, groups))
        visible_RQL = np.arange(self.own.start, self.own.stop) <= limit_RQ[:, :, None]
        blind_RQL = np.where(visible_RQL, np.float32(0), np.float32(-np.inf))
        self.mask = cache.put(blind_RQL)[:, None].to(cache.keys[0].dtype)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """query [T, Hq, D], keys and values [S, L, Hk, D] -> [T, Hq, D]."""
        keys_R, values_R = (store[self.slots, self.own].transpose(1, 2) for store in (keys, values))
        (_, heads, size), kv_heads = query.shape, keys.shape[2]
        padded = query.new_zeros(self.rows * self.most, heads, size).index_copy_(0, self.padded_T, query)
        # Query heads that share a key head are folded into its queries, so that no key is repeated.
        folded = padded.view(self.rows, self.most, heads, size).transpose(1, 2)
        folded = folded.reshape(self.rows, kv_heads, heads // kv_heads * self.most, size)
        if self.shared:
            first_keys, first_values = (store[self.prefix, : self.shared].transpose(0, 1) for store in (keys, values))
            out = _with_prefix(folded, first_keys, first_values, keys_R, values_R, self.mask, scale)
        else:
            out = scaled_dot_product_attention(folded, keys_R, values_R, attn_mask=self.mask, scale=scale)
        out = out.reshape(self.rows, heads, self.most, size).transpose(1, 2).reshape(self.rows * self.most, heads, size)
        return out.index_select(0, self.padded_T)


def _with_prefix(
    query: Tensor, first_keys: Tensor, first_values: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float
) -> Tensor:
    """Attention of query [R, Hk, Q, D] to a prefix of all rows [Hk, P, D], and to their own [R, Hk, L, D] behind it:
    each by itself, then weighed by the sum of its exponentials."""
    rows, heads, queries, _ = query.shape
    together = query.transpose(0, 1).reshape(heads, rows * queries, -1)
    scores = torch.baddbmm(together.new_zeros(()), together, first_keys.transpose(1, 2), beta=0, alpha=scale)
    first_sum = torch.logsumexp(at_least_float32(scores), dim=-1, keepdim=True)  # bfloat16 would round the share
    weights = torch.exp(scores - first_sum).to(first_values.dtype)
    first = (weights @ first_values).view(heads, rows, queries, -1).transpose(0, 1)
    own, own_sum = _attention_and_sum(query, keys, values, mask, scale)
    first_sum = first_sum.view(heads, rows, queries, 1).transpose(0, 1)
    share = torch.sigmoid(first_sum - at_least_float32(own_sum)[..., None])
    return torch.lerp(at_least_float32(own), at_least_float32(first), share).to(values.dtype)


def _attention_and_sum(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """[R, H, Q, D], and the logarithm of the sum of exponentials [R, H, Q]."""
    if query.device.type == "cpu":  # what scaled_dot_product_attention calls here; it does not tell the sum
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, keys, values, attn_mask=mask, scale=scale
        )
    scores = query @ keys.transpose(2, 3) * scale + mask
    total = torch.logsumexp(scores, dim=-1)
    return torch.exp(scores - total[..., None]) @ values, total


def key_heads(config: Any) -> int:
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads
