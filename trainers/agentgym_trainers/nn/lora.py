"""LoRA (Hu et al. 2021, 2106.09685): a linear layer's weight W stays, and W + alpha/rank · B A is learned.

B begins at zero, so a model that was just given adapters says what it said before, and with its adapters off it says so
for ever: the policy as RL began needs no second copy. The layers are peft's. What leaves the trainer can be read as
merged weights, and has its adapters by themselves for an engine that serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import save_file
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

    Raises ConfigError where peft is not installed, no linear layer has such a name, or one of them is the output layer
    of a model whose embeddings are the same weights: merged, the adapter would change these too.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("model.lora needs peft: pip install 'turngym[train]'") from error
    head, words = model.get_output_embeddings(), model.get_input_embeddings()
    ends = [name for name, module in model.named_modules() if module is head and head.weight is words.weight]
    if ends and any(ends[0] == target or ends[0].endswith(f".{target}") for target in options.targets or ()):
        raise ConfigError(
            "model.lora.targets: this model's output layer has the weights of its embeddings, and an adapter would "
            "change both once it is merged; leave it out"
        )
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


@dataclass(frozen=True)
class Adapter:
    """B and A of every layer that has them; `scale` · B A is added to the layer's weight."""

    matrices: Mapping[str, tuple[Tensor, Tensor]]
    """(A [rank, in], B [out, rank]) by the name of the layer."""
    rank: int
    scale: float

    def map(self, change: Callable[[Tensor], Tensor]) -> Adapter:
        """The same with every tensor changed."""
        return replace(self, matrices={name: (change(a), change(b)) for name, (a, b) in self.matrices.items()})

    def save(self, folder: Path) -> None:
        """Write peft's files, which vLLM loads too: adapter_config.json and adapter_model.safetensors."""
        from peft import LoraConfig

        tensors = {}
        for name, pair in self.matrices.items():
            for which, tensor in zip("AB", pair, strict=True):
                tensors[f"base_model.model.{name}.lora_{which}.weight"] = tensor.detach().cpu().contiguous()
        save_file(tensors, folder / "adapter_model.safetensors")
        alpha: Any = self.scale * self.rank
        LoraConfig(r=self.rank, lora_alpha=alpha, target_modules=sorted(self.matrices)).save_pretrained(str(folder))


class MergedWeights(Mapping[str, Tensor]):
    """Weights of a model with adapters, as those of the model without: W + alpha/rank · B A, at least float32.

    They are merged when they are read, so that whoever takes `base` and `adapter` needs no memory for it.
    """

    def __init__(self, base: Mapping[str, Tensor], adapter: Adapter) -> None:
        """`base`: the weights beneath, by the names of the model without adapters."""
        self.base, self.adapter = base, adapter

    def __getitem__(self, name: str) -> Tensor:
        tensor, matrices = self.base[name], self.adapter.matrices.get(name.removesuffix(".weight"))
        if matrices is None or not name.endswith(".weight"):
            return tensor
        wide = torch.promote_types(tensor.dtype, torch.float32)
        a, b = (matrix.to(wide) for matrix in matrices)
        return tensor.to(wide) + self.adapter.scale * (b @ a)

    def __iter__(self) -> Iterator[str]:
        return iter(self.base)

    def __len__(self) -> int:
        return len(self.base)

    def map(self, change: Callable[[Tensor], Tensor]) -> MergedWeights:
        """The same with every tensor changed."""
        return MergedWeights({name: change(tensor) for name, tensor in self.base.items()}, self.adapter.map(change))


def merge_lora(weights: Mapping[str, Tensor], model: Any) -> Mapping[str, Tensor]:
    """`weights` of `model`, which may have adapters, as those of the model without."""
    found = layers(model)
    if not found:
        return weights
    first = next(iter(found.values()))
    matrices = {
        name: (weights[f"{name}.lora_A.default.weight"], weights[f"{name}.lora_B.default.weight"]) for name in found
    }
    base = {name.replace(".base_layer.", "."): tensor for name, tensor in weights.items() if ".lora_" not in name}
    return MergedWeights(base, Adapter(matrices, first.r["default"], first.scaling["default"]))


def adapter_of(weights: Mapping[str, Tensor]) -> Adapter | None:
    """The adapter among the weights that an engine is given, if there is one."""
    return weights.adapter if isinstance(weights, MergedWeights) else None


def base_of(weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The weights beneath an adapter; `weights` themselves where there is none."""
    return weights.base if isinstance(weights, MergedWeights) else weights


def strong(weights: MergedWeights, share: float = 0.5) -> MergedWeights:
    """The weights with an adapter of the same shape that changes every layer by `share` of its weight's norm."""
    generator, matrices = torch.Generator().manual_seed(0), {}
    for name, pair in weights.adapter.matrices.items():
        weight = weights.base[f"{name}.weight"]
        a, b = (torch.randn(matrix.shape, generator=generator).to(weight.device) for matrix in pair)
        norm = torch.linalg.matrix_norm(b @ a) * weights.adapter.scale
        matrices[name] = a, b * (share * torch.linalg.matrix_norm(weight.float()) / norm)
    return MergedWeights(weights.base, replace(weights.adapter, matrices=matrices))


@contextmanager
def applied(model: Any, adapter: Adapter | None) -> Iterator[None]:
    """`model`, which has no adapters, computes as if it had this one."""
    with ExitStack() as stack:
        for name, (a, b) in (adapter.matrices if adapter is not None else {}).items():

            def add(_: Any, given: tuple[Tensor], output: Tensor, a: Tensor = a, b: Tensor = b) -> Tensor:
                assert adapter is not None
                return output + (adapter.scale * (given[0].to(a.dtype) @ a.T) @ b.T).to(output.dtype)

            stack.callback(model.get_submodule(name).register_forward_hook(add).remove)
        yield
