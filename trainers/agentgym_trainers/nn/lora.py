"""LoRA (Hu et al. 2021, 2106.09685): a linear layer's weight W stays, and W + alpha/rank · B A is learned.

B begins at zero, so a model that was just given adapters says what it said before, and with its adapters off it says so
for ever: the policy as RL began needs no second copy. The layers are peft's; what leaves the trainer is merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from agentgym.errors import CheckpointError, ConfigError


class LoraOptions(BaseModel):
    """Train adapters of low rank instead of all weights.

    There is no dropout: the engine samples without it, so every ratio of new to old probabilities would be noise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int = Field(default=16, gt=0)
    alpha: float = Field(default=32.0, gt=0)
    """Scale: alpha / rank multiplies B A."""
    targets: tuple[str, ...] | None = None
    """Linear layers by the ends of their names ("q_proj"); None: all but the output layer."""


def add_lora(model: Any, options: LoraOptions, seed: int) -> None:
    """Give `model`, in place, adapters that change nothing yet, and freeze the rest. They are at least float32.

    Raises ConfigError where peft is not installed, or no linear layer has such a name.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("model.lora needs peft: pip install 'turngym[train]'") from error
    targets = "all-linear" if options.targets is None else list(options.targets)
    config = LoraConfig(r=options.rank, lora_alpha=options.alpha, target_modules=targets)  # pyright: ignore[reportArgumentType]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model)
        except ValueError as error:
            raise ConfigError(f"model.lora.targets: {error}") from error
    for layer in layers(model).values():
        if not isinstance(layer.base_layer, torch.nn.Linear):
            raise ConfigError(
                f"model.lora.targets: a {type(layer.base_layer).__name__} is no linear layer; leave it out"
            )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name)
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))


def layers(model: Any) -> dict[str, Any]:
    """The layers that have an adapter, by name."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


@contextmanager
def disable_lora(model: Any) -> Iterator[None]:
    """The model without its adapters, if it has any."""
    found = layers(model).values()
    for layer in found:
        layer._disable_adapters = True  # peft's `enable_adapters` would switch gradients too, which FSDP asks only once
    try:
        yield
    finally:
        for layer in found:
            layer._disable_adapters = False


def state_of(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a model's adapters."""
    return {name: tensor for name, tensor in weights.items() if ".lora_" in name}


def load(model: Any, state: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError unless `state` is of this model's very adapters."""
    own = state_of(model.state_dict())
    if own.keys() != state.keys() or any(own[name].shape != state[name].shape for name in own):
        raise CheckpointError("the checkpoint's adapters are not those of model.lora; go on with the options it had")
    model.load_state_dict(state, strict=False)


def merge_lora(weights: Mapping[str, Tensor], model: Any) -> dict[str, Tensor]:
    """`weights` of a model with adapters, as those of the model without: W + alpha/rank · B A, at least float32."""
    scaling = {name: layer.scaling["default"] for name, layer in layers(model).items()}
    found = {}
    for name, tensor in weights.items():
        layer, inside, kind = name.partition(".base_layer.")
        if ".lora_" in name:
            continue
        if inside and kind == "weight":
            wide = torch.promote_types(tensor.dtype, torch.float32)
            a, b = (weights[f"{layer}.lora_{which}.default.weight"].to(wide) for which in "AB")
            tensor = tensor.to(wide) + scaling[layer] * (b @ a)
        found[f"{layer}.{kind}" if inside else name] = tensor
    return found
