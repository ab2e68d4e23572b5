"""Bytes of a run's models on a GPU, counted from the very modules that the run builds, on torch's `meta` device.

What is kept between steps (weights, gradients, AdamW's moments, copies) is a sum over parameters. Activations are what
autograd saves in a forward of one and of two layers without data, times the layers. Together they are within 1 % of
what an H200 allocated in three updates (benchmarks/results/gpu/learner.json).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from agentgym.rollouts.runner import Limits, Runner
from agentgym.spec import EnvSpec
from agentgym_trainers.config.sections import Config
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.engines.build import inference_copy
from agentgym_trainers.learner.build import build_learner, prepare
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.nn import lora, tiny
from agentgym_trainers.nn.attention import use_packed_attention
from agentgym_trainers.nn.precision import autocast, cast
from agentgym_trainers.nn.vision import model_class
from agentgym_trainers.rollout.player import PolicyPlayer
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.signals import SIGNALS
from agentgym_trainers.signals.base import Signal, SignalDependencies

LOGIT_BYTES = 21
"""Bytes of a logit at the peak of a backward pass: the log-probability, its exponential and their gradients in float32,
the logit and its gradient. In three updates on an H200 it was 20.3 to 20.9."""


@dataclass(frozen=True, slots=True)
class MetaModules:
    """Everything with parameters that a run of one process builds, on `meta`."""

    learner: Learner
    engine: Any
    """The model that the engine keeps in this process: the policy itself, or a copy."""
    signals: Mapping[str, Signal]


@dataclass(frozen=True, slots=True)
class KeptBytes:
    """Bytes that a trained module keeps."""

    weights: int
    gradients: int
    moments: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.moments


@dataclass(frozen=True, slots=True)
class UpdateBytes:
    """Bytes of one micro-batch's forward and backward, beside what is kept."""

    activations: int
    without_checkpointing: int
    with_checkpointing: int
    """Activations either way; the first field is the one that the run has."""
    logits: int


def model_on_meta(shape: Any) -> Any:
    """A float32 model of a transformers configuration, without memory."""
    with torch.device("meta"):
        return model_class(shape).from_config(shape, dtype=torch.float32).eval()


def build_on_meta(config: Config, shape: Any, spec: EnvSpec) -> MetaModules:
    """The modules, by the functions that build them for a run and in that order."""
    model = model_on_meta(shape)
    engine = inference_copy(config, model)
    template = ChatTemplate(tiny.make_tokenizer(["x"], 262, 64))  # parameters do not depend on the tokenizer
    runner = Runner(_no_session, config.prompt_format, Limits(), config.rollout.concurrency)
    sampling = Sampling(config.rollout.temperature, config.rollout.max_new_tokens, frozenset())
    player = PolicyPlayer(None, template, sampling, runner)  # pyright: ignore[reportArgumentType]
    parts = SignalDependencies(
        model=model, reference=model, template=template, sampling=sampling, seed=config.run.seed,
        tokens_per_micro_batch=config.optim.tokens_per_micro_batch, player=player, spec=spec, folder=Path(),
    )  # fmt: skip
    signals = {name: SIGNALS[name].build(options, parts) for name, options in config.signals.items()}
    return MetaModules(build_learner(config, model, model), engine, signals)


async def _no_session() -> Any:
    raise NotImplementedError


def kept_bytes(parameters: Iterable[nn.Parameter], muon: Iterable[nn.Parameter] = ()) -> KeptBytes:
    """Bytes of parameters between steps: gradients, and AdamW's two moments, only of those that learn. Those that Muon
    moves have one momentum."""
    once = {id(p) for p in muon}
    weights = gradients = moments = 0
    for parameter in {id(p): p for p in parameters}.values():
        size = parameter.numel() * parameter.element_size()
        weights += size
        if parameter.requires_grad:
            gradients += size
            moments += (1 if id(parameter) in once else 2) * size + 4  # and the count of steps
    return KeptBytes(weights, gradients, moments)


def modules_of(signal: Signal, others: Iterable[nn.Module]) -> list[nn.Module]:
    """Modules that a signal holds and nobody else does."""
    known = {id(module) for module in others}
    held = [part for part in vars(signal).values() if isinstance(part, nn.Module)]
    critic = vars(signal).get("critic")  # of twins, a plain object around modules
    held += [part for part in vars(critic).values() if isinstance(part, nn.Module)] if critic is not None else []
    return [module for module in held if id(module) not in known]


def merged_bytes(model: Any) -> int:
    """Bytes of the weights that adapters are merged into for a checkpoint, in float32; 0 without adapters."""
    return sum(4 * layer.base_layer.weight.numel() for layer in lora.layers(model).values())


def update_bytes(config: Config, shape: Any, tokens: int, *, sharded: bool = False) -> UpdateBytes:
    """Bytes of the update of one micro-batch of `tokens`, every one of them sampled at most. `sharded`: layers are
    gathered in `model.dtype` (FSDP2)."""
    layers = shape.num_hidden_layers
    saved = {}
    for recompute in (False, True):
        first, two = (_saved_bytes(config, shape, tokens, n, recompute, sharded) for n in (1, 2))
        saved[recompute] = first, two - first
    models = 2 if config.value is not None else 1
    rounded = config.model.dtype == "bfloat16" and not sharded
    # Autocast keeps bfloat16 copies of float32 matrices until a forward has ended.
    head = 2 * shape.vocab_size * shape.hidden_size if rounded and config.model.lora is None else 0
    trunk = 2 * trunk_matrices(model_on_meta(shape)) if rounded and config.model.lora is None else 0
    plain = models * (saved[False][0] + (layers - 1) * saved[False][1])
    again = models * (saved[True][0] + (layers - 1) * saved[True][1] + saved[False][1] + trunk)
    chosen = again if config.model.gradient_checkpointing else plain
    logits = LOGIT_BYTES * tokens * shape.vocab_size
    return UpdateBytes(chosen + head, plain + head, again + head, logits)


def _saved_bytes(config: Config, shape: Any, tokens: int, layers: int, recompute: bool, sharded: bool) -> int:
    """Bytes that autograd saves in a forward of a trunk of so many layers; the model's own weights are none of them."""
    shape = copy.deepcopy(shape)
    shape.num_hidden_layers = layers
    if getattr(shape, "layer_types", None):
        shape.layer_types = shape.layer_types[:layers]
    model = model_on_meta(shape)
    options = config.model.model_copy(update={"gradient_checkpointing": recompute})
    prepare(config.model_copy(update={"model": options}), model)
    if sharded:
        cast(model, config.model.dtype)
    use_packed_attention(model)
    saved: dict[int, Tensor] = {}
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        own = {p.untyped_storage()._cdata for p in model.parameters()}

        def keep(tensor: Tensor) -> Tensor:
            if tensor.untyped_storage()._cdata not in own:
                saved[tensor.untyped_storage()._cdata] = tensor
            return tensor

        inputs = {"input_ids": torch.zeros(1, tokens, dtype=torch.int64), "position_ids": torch.arange(tokens)[None]}
        with saved_tensors_hooks(keep, lambda tensor: tensor), autocast(model, config.model.dtype):
            model.base_model(**inputs, use_cache=False)
        return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def trunk_matrices(model: Any) -> int:
    """Entries of the language model's matrices, adapters left out: two operations each for a token's forward."""
    trunk = model.base_model.named_parameters()
    others = ("embed", ".lora_", "visual.")
    return sum(p.numel() for name, p in trunk if p.ndim == 2 and not any(other in name for other in others))
