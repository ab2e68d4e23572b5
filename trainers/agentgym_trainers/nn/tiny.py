"""A tiny model made from a seed: a standard Hugging Face checkpoint, with a byte-level tokenizer and a chat template.

For tests, the quickstart and CPU work. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""The ChatML convention; earlier turns are never rewritten, so a transcript only ever grows."""

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Padding first, the end of a reply last."""


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
