"""Shapes of models that a plan knows by their hub ids, so that it needs neither the hub nor weights.

Facts are from the models' public config.json: layers, hidden size, heads, words. Any other model is planned from a
folder that has its config.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig

from agentgym.errors import CheckpointError, ConfigError
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.nn.vision import is_vision


def _qwen3(
    layers: int, hidden: int, heads: int, intermediate: int, *, tied: bool = True, length: int = 40960
) -> dict[str, Any]:
    return {
        "model_type": "qwen3", "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "intermediate_size": intermediate, "tie_word_embeddings": tied, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151936, "max_position_embeddings": length,
    }  # fmt: skip


_LLAMA_3_2_3B = {
    "model_type": "llama", "num_hidden_layers": 28, "hidden_size": 3072, "num_attention_heads": 24,
    "intermediate_size": 8192, "tie_word_embeddings": True, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip

SHAPES: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-0.6B": _qwen3(28, 1024, 16, 3072),
    "Qwen/Qwen3-1.7B": _qwen3(28, 2048, 16, 6144),
    "Qwen/Qwen3-4B": _qwen3(36, 2560, 32, 9728),
    "Qwen/Qwen3-4B-Instruct-2507": _qwen3(36, 2560, 32, 9728, length=262144),
    "Qwen/Qwen3-8B": _qwen3(36, 4096, 32, 12288, tied=False),
    "meta-llama/Llama-3.2-3B": _LLAMA_3_2_3B,
    "meta-llama/Llama-3.2-3B-Instruct": _LLAMA_3_2_3B,
}
"""Fields of a transformers configuration by hub id."""


VISION_NOTE = "what images cost a step is not counted: the vision tower's activations, and its time"


def language_model(config: Any) -> Any:
    """A vision-language model's configuration without its tower: Qwen2.5-VL's language model is a Qwen2, Qwen3-VL's a
    Qwen3. Any other is its own."""
    if not is_vision(config):
        return config
    text = config.get_text_config()
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "max_position_embeddings", "head_dim")  # fmt: skip
    fields = {name: getattr(text, name) for name in names if getattr(text, name, None) is not None}
    kind = {"qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3"}[config.model_type]
    return AutoConfig.for_model(kind, tie_word_embeddings=config.tie_word_embeddings, **fields)


def shape_notes(path: str | None) -> list[str]:
    """Limits of what a plan of this model counts. Raises as `shape_of`."""
    if path is None or (path in SHAPES and not Path(path).exists()):
        return []
    return [VISION_NOTE] if is_vision(checkpoint.load_config(path)) else []


def shape_of(path: str | None) -> Any:
    """The transformers configuration of `model.path`. Raises ConfigError without a path, and CheckpointError."""
    if path is None:
        raise ConfigError(
            "--plan counts the memory of a model that exists, and this run makes a tiny one: name one with --setup or "
            "model.path=FOLDER"
        )
    if path in SHAPES and not Path(path).exists():
        return AutoConfig.for_model(**SHAPES[path])
    try:
        return checkpoint.load_config(path)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; known without the hub: {', '.join(SHAPES)}") from error
