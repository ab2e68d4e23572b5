"""A tiny model made from a seed: a standard Hugging Face checkpoint, with a byte-level tokenizer and a chat template.

For tests, the quickstart and CPU work. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from agentgym_trainers.nn import vision

CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""The ChatML convention; earlier turns are never rewritten, so a transcript only ever grows."""

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Padding first, the end of a reply last."""


IMAGE_CHATML = """
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.content is string %}{{- m.content }}{%- else %}
        {%- for part in m.content %}
            {%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- else %}{{- part.text }}{%- endif %}
        {%- endfor %}
    {%- endif %}{{- '<|im_end|>\\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
""".strip()
"""The same with images, as Qwen2.5-VL writes them."""

IMAGE_SPECIAL = (*SPECIAL[:-1], "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", SPECIAL[-1])


class TinyVision(BaseModel):
    """Shape of the tiny model's vision tower."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden_size: int = Field(default=64, gt=0)
    layers: int = Field(default=2, gt=0)
    heads: int = Field(default=2, gt=0)
    intermediate_size: int = Field(default=128, gt=0)
    patch_size: int = Field(default=14, gt=0)
    """Pixels. A token stands for two by two patches."""
    max_tokens: int = Field(default=256, gt=0)
    """Tokens of an image: larger ones are scaled down."""
    image_mean: float = Field(default=0.45, ge=0, le=1)
    """Brightness, of every channel, that the tower gets as 0. 1 for white pages: with CLIP's mean, about the default, a
    gray button on them stayed unseen for 750 steps of supervised learning (docs/LOG.md)."""
    image_std: float = Field(default=0.27, gt=0)
    """Difference of brightness that the tower gets as 1."""


class TinyModel(BaseModel):
    """Shape of the tiny model. The defaults have 0.2 million parameters and learn the 3x3 key-and-door environment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden_size: int = Field(default=64, gt=0)
    layers: int = Field(default=3, gt=0)
    heads: int = Field(default=2, gt=0)
    head_dim: int = Field(default=32, gt=0)
    """32 or more: the least that vLLM's CPU kernels take."""
    intermediate_size: int = Field(default=192, gt=0)
    vocab_size: int = Field(default=384, ge=262)
    """256 bytes, 3 special tokens, the rest merges learned from the corpus."""
    max_length: int = Field(default=1024, gt=0)
    """Tokens a whole episode may have."""
    vision: TinyVision | None = None
    """A table [model.tiny.vision], which may be empty, makes a vision-language model."""

    @model_validator(mode="after")
    def _heads_fit(self) -> TinyModel:
        if self.vision is not None and self.heads * self.head_dim != self.hidden_size:
            raise ValueError("with a table `vision`, hidden_size must be heads times head_dim")
        return self


def make_tokenizer(
    corpus: Iterable[str],
    vocab_size: int,
    max_length: int,
    *,
    chat_template: str = CHATML,
    special: Sequence[str] = SPECIAL,
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer learned from `corpus`; any text round-trips.

    `special` are the tokens that `chat_template` writes: the first pads, the last ends a reply.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=special[-1],
        pad_token=special[0],
        additional_special_tokens=list(special[1:-1]),
        chat_template=chat_template,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def make(shape: TinyModel, corpus: Iterable[str], seed: int) -> tuple[Any, PreTrainedTokenizerFast]:
    """(model, tokenizer): a text model, or a vision-language model with its image processor."""
    if shape.vision is None:
        tokenizer = make_tokenizer(corpus, shape.vocab_size, shape.max_length)
        return make_model(shape, tokenizer, seed).eval(), tokenizer
    tokenizer = make_tokenizer(
        corpus, shape.vocab_size, shape.max_length, chat_template=IMAGE_CHATML, special=IMAGE_SPECIAL
    )
    model = make_vision_model(shape, shape.vision, tokenizer, seed).eval()
    side = 2 * shape.vision.patch_size
    size = {"shortest_edge": side**2, "longest_edge": shape.vision.max_tokens * side**2}
    mean, std = shape.vision.image_mean, shape.vision.image_std
    processor = Qwen2VLImageProcessorPil(
        patch_size=shape.vision.patch_size, size=size, image_mean=[mean] * 3, image_std=[std] * 3
    )
    vision.attach(processor, model, tokenizer)
    return model, tokenizer


def make_vision_model(shape: TinyModel, tower: TinyVision, tokenizer: Any, seed: int) -> PreTrainedModel:
    """A Qwen2.5-VL, as `make_model`."""
    half = shape.head_dim // 2
    section = [half - 2 * (half * 3 // 8), half * 3 // 8, half * 3 // 8]  # of Qwen2.5-VL's heads: 16, 24, 24
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_length,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": section},
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    image = {
        "hidden_size": tower.hidden_size,
        "depth": tower.layers,
        "num_heads": tower.heads,
        "intermediate_size": tower.intermediate_size,
        "patch_size": tower.patch_size,
        "window_size": 8 * tower.patch_size,
        "fullatt_block_indexes": [tower.layers - 1],
        "out_hidden_size": shape.hidden_size,
    }
    tokens = {
        "vision_start": "<|vision_start|>",
        "vision_end": "<|vision_end|>",
        "image": "<|image_pad|>",
        "video": "<|video_pad|>",
    }
    ids = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(token) for name, token in tokens.items()}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=image, tie_word_embeddings=False, **ids)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2_5_VLForConditionalGeneration(config)


def make_model(shape: TinyModel, tokenizer: Any, seed: int) -> PreTrainedModel:
    """A Qwen3 of that shape with weights from `seed`; the global random state is left as it was."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=shape.max_length,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)
