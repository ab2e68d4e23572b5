"""One attention function for the learner and the in-process engine, registered with transformers.

Both feed a model tokens of many sequences as a single row: no padding is computed. The `layout` they pass to the
model's forward says which tokens see which.

Shapes: T packed tokens, B sequences, Hq query heads, Hk key heads, D head size, L cached positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from agentgym.errors import CheckpointError
from agentgym_trainers.nn.prefix_tree import Chunk, PrefixTree

NAME = "agentgym_packed"

_ORDINARY = (
    "this model was switched to packed attention, which knows neither padding nor transformers' key-value cache; for "
    "`generate` and the like call model.set_attn_implementation('sdpa') first"
)


class Layout(Protocol):
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [Hq, T, D], key and value [Hk, T, D] -> [Hq, T, D]."""
        ...


class Chunks:
    """A tree of sequences, chunk after chunk: each sees what is before it, and itself causally."""

    def __init__(self, chunks: Sequence[Chunk], device: Any) -> None:
        self.chunks = chunks
        self.masks = [_causal_after(chunk, device) if chunk.before else None for chunk in chunks]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        options = {"scale": scale, "enable_gqa": query.shape[0] != key.shape[0]}
        outs = []
        for chunk, mask in zip(self.chunks, self.masks, strict=True):
            spans = [*chunk.before, (chunk.start, chunk.stop)]
            k, v = (torch.cat([part[:, a:b] for a, b in spans], dim=1)[None] for part in (key, value))
            q = query[None, :, chunk.start : chunk.stop]
            outs.append(scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, **options)[0])
        return torch.cat(outs, dim=1)


class Blocks:
    """The same by FlexAttention, for CUDA: one kernel that skips what is masked, whatever the tree."""

    def __init__(self, until_T: Tensor, *, compiled: bool = True) -> None:
        def visible(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (k <= q) & (q < until_T[k])

        size = len(until_T)
        self.mask = create_block_mask(visible, None, None, size, size, device=str(until_T.device))
        self.function = _compiled_flex() if compiled else flex_attention

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        gqa = query.shape[0] != key.shape[0]
        query, key = query.to(value.dtype), key.to(value.dtype)  # under autocast, norms leave them in float32
        out = self.function(query[None], key[None], value[None], block_mask=self.mask, scale=scale, enable_gqa=gqa)
        return out[0]


@cache
def _compiled_flex() -> Any:
    return torch.compile(flex_attention, dynamic=True)


def layout_of(tree: PrefixTree, device: Any) -> Layout:
    """Layout in which a device computes a tree."""
    if torch.device(device).type == "cuda":
        return Blocks(torch.from_numpy(tree.until_T).to(device))
    return Chunks(tree.chunks, device)


def _causal_after(chunk: Chunk, device: Any) -> Tensor:
    """bool[Q, K]: query i sees all that is before the chunk, and of the chunk the tokens up to i."""
    count, past = chunk.stop - chunk.start, sum(stop - start for start, stop in chunk.before)
    return torch.ones(count, past + count, dtype=torch.bool, device=device).tril(past)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Logits wide enough for a softmax: half precision is widened, float64 stays."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def use_packed_attention(model: Any) -> None:
    """Switch `model` to packed attention. Raises CheckpointError for architectures that cannot."""
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _no_mask)
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if getattr(config, "layer_types", None) is None and getattr(config, "sliding_window", None) is not None:
        kinds = {"sliding_attention"}
    if getattr(config, "kv_lora_rank", None) is not None:
        kinds = {"latent attention"}
    if not getattr(model, "_supports_attention_backend", False) or kinds != {"full_attention"}:
        raise CheckpointError(
            f"{type(model).__name__} does not take a custom attention function (layers: {', '.join(sorted(kinds))}); "
            "use a model of full attention such as Qwen2, Qwen3 or Llama, or Mistral without its sliding window"
        )
    vision = {name: "sdpa" for name in model.config.sub_configs if name != "text_config"}
    model.set_attn_implementation({"": NAME, "text_config": NAME, **vision})


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float, **kwargs: Any
) -> tuple[Tensor, None]:
    layout: Layout | None = kwargs.get("layout")
    if layout is None:  # an ordinary forward, one causal sequence a row
        if query.shape[2] != key.shape[2]:
            raise RuntimeError(_ORDINARY)
        gqa = query.shape[1] != key.shape[1]
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=gqa)
        return out.transpose(1, 2), None
    out = layout.attend(module.layer_idx, query[0], key[0], value[0], scaling)
    return out.transpose(0, 1)[None], None


def _no_mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> None:
    if attention_mask is not None and not attention_mask.all():
        raise RuntimeError(_ORDINARY)
