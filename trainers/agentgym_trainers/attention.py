"""One attention function for the learner and the in-process engine, registered with transformers.

Both feed a model tokens of many sequences laid end to end, as a single row: no padding is computed. The `layout` they
pass to the model's forward says which tokens belong together.

Shapes: T packed tokens, B sequences, Hq query heads, Hk key heads, D head size, L cached positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from agentgym.errors import CheckpointError

NAME = "agentgym_packed"

_ORDINARY = (
    "this model was switched to packed attention, which knows neither padding nor transformers' key-value cache; for "
    "`generate` and the like call model.set_attn_implementation('sdpa') first"
)


class Layout(Protocol):
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [Hq, T, D], key and value [Hk, T, D] -> [Hq, T, D]."""
        ...


class Segments:
    """Independent causal sequences laid end to end; what the learner computes."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        parts = [part.split(self.lengths, dim=1) for part in (query, key, value)]
        gqa = query.shape[0] != key.shape[0]
        outs = [
            scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, scale=scale, enable_gqa=gqa)[0]
            for q, k, v in zip(*parts, strict=True)
        ]
        return torch.cat(outs, dim=1)


def positions(lengths: Sequence[int], device: Any = None) -> Tensor:
    """int64[1, T]: 0, 1, ... within each sequence."""
    return torch.cat([torch.arange(length, device=device) for length in lengths])[None]


def at_least_float32(tensor: Tensor) -> Tensor:
    """Logits wide enough for a softmax: half precision is widened, float64 stays."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def use_packed_attention(model: Any) -> None:
    """Switch `model` to packed attention. Raises CheckpointError for architectures that cannot."""
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _no_mask)
    config = model.config
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
    model.set_attn_implementation(NAME)


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
