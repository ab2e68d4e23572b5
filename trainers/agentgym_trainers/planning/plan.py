"""`agentgym train ... --plan`: what a run takes, part by part, before anything is trained.

The largest moment of a step decides what the trainer takes: an update, the optimizer's step, or new weights for the
engine. vLLM takes the share of the GPU that it is given, whatever it needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from agentgym.spec import EnvSpec
from agentgym_trainers.config.option_errors import checked_model
from agentgym_trainers.config.sections import Config
from agentgym_trainers.engines.options import Vllm, cache_bytes
from agentgym_trainers.learner.optimizer import hidden_matrices
from agentgym_trainers.planning.memory import (
    KeptBytes,
    MetaModules,
    build_on_meta,
    kept_bytes,
    merged_bytes,
    modules_of,
    trunk_matrices,
    update_bytes,
)
from agentgym_trainers.planning.shapes import language_model, shape_notes, shape_of
from agentgym_trainers.planning.speed import PEAK, StepWork, learning_s, sampling_s, share_of, step_work
from agentgym_trainers.signals import SIGNALS

GB = 1e9
DEFAULT_GPU_GB = 80.0
"""Memory of the GPU that is planned for where this machine has none."""
RESERVED = 0.08
"""Memory that PyTorch reserves beyond what it allocates: the most in three updates on an H200
(benchmarks/results/gpu/learner.json)."""
VLLM_OVERHEAD = 2 * GB
"""Bytes of vLLM beside weights and cache: graphs and the largest forward. Assumed, not measured."""
GATHERED_BYTES = 8
"""FSDP2's bytes for a weight that is whole for a moment: itself and its gradient in bfloat16, and that in float32."""
MAX_LR, MAX_LORA_LR = 1e-5, 2e-4
"""Learning rates above which a note is printed: they suit the tiny models that recipes were tuned on."""


@dataclass(frozen=True, slots=True)
class PlanPart:
    """A row of the plan: bytes, tokens or seconds of one thing."""

    name: str
    amount: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """Memory of one GPU by part, in bytes."""

    name: str
    parts: tuple[PlanPart, ...]
    size: float

    @property
    def total(self) -> float:
        return sum(part.amount for part in self.parts)

    @property
    def fits(self) -> bool:
        return self.total <= self.size


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Memory and time that a run takes. `problems` is empty where it fits; else `change` says what to set."""

    parameters: int
    gpus: tuple[GpuPlan, ...]
    tokens: PlanPart
    """Tokens of a step, at most."""
    seconds: tuple[PlanPart, ...]
    """Seconds of a step, at most."""
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    change: str = ""


def gpu_bytes() -> float:
    """Memory of this machine's first GPU, or `DEFAULT_GPU_GB`."""
    return float(torch.cuda.mem_get_info(0)[1]) if torch.cuda.is_available() else DEFAULT_GPU_GB * GB


def plan_run(config: Config, spec: EnvSpec, size: float) -> RunPlan:
    """The plan of a run on GPUs of `size` bytes. Raises ConfigError and CheckpointError where a model is not known."""
    trainer = _trainer(config, spec)
    plan = _plan(config, spec, size, trainer)
    return plan if not plan.problems else replace(plan, change=_change(config, spec, size, trainer))


@dataclass(frozen=True, slots=True)
class _Trainer:
    """Everything of a plan that does not depend on the GPU and on vLLM's share of it."""

    shape: Any
    parameters: int
    """Parameters of the model without adapters, a vision tower's among them."""
    matrices: int
    parts: tuple[PlanPart, ...]

    @property
    def total(self) -> float:
        return sum(part.amount for part in self.parts)


def _trainer(config: Config, spec: EnvSpec) -> _Trainer:
    with_tower = shape_of(config.model.path)
    modules, shape = build_on_meta(config, with_tower, spec), language_model(with_tower)
    named = modules.learner.model.named_parameters()
    parameters = sum(p.numel() for name, p in named if ".lora_" not in name)
    parts = [*_trainer_parts(config, shape, modules, parameters)]
    reserve = RESERVED * sum(part.amount for part in parts)
    parts.append(PlanPart("reserve", reserve, f"PyTorch reserves up to {RESERVED:.0%} beyond that"))
    return _Trainer(shape, parameters, trunk_matrices(modules.learner.model), tuple(parts))


def _plan(config: Config, spec: EnvSpec, size: float, trainer: _Trainer) -> RunPlan:
    shape, parameters = trainer.shape, trainer.parameters
    capacity, server = _server_part(config, shape, parameters, size)
    servers = () if server is None else (server,)
    if config.scale is None:
        gpus = [GpuPlan("GPU", (*trainer.parts, *servers), size)]
    else:
        gpus = [GpuPlan("a learner's GPU", trainer.parts, size)]
        gpus += [GpuPlan("a server's GPU", servers, size)] if servers else []
    work = step_work(config, config.env.max_turns or spec.max_turns)
    longest = f"at most: {config.rollout.groups} x {config.rollout.group_size} episodes of {work.length:,}"
    problems = [f"{gpu.name} needs {gpu.total / GB:.1f} of {gpu.size / GB:.0f} GB" for gpu in gpus if not gpu.fits]
    if servers and capacity < work.length:
        problems.append(f"vLLM has room for {max(capacity, 0):,} tokens, and an episode may have {work.length:,}")
    return RunPlan(
        parameters,
        tuple(gpus),
        PlanPart("tokens a step", work.tokens, longest),
        tuple(_seconds(config, trainer, capacity, work)),
        tuple(problems),
        (*_notes(config), *shape_notes(config.model.path)),
    )


def _seconds(config: Config, trainer: _Trainer, capacity: int, work: StepWork) -> Iterator[PlanPart]:
    measured, share = share_of(trainer.parameters)
    seconds = learning_s(config, trainer.shape, trainer.parameters, trainer.matrices, work)
    speed = f"{share:.0%} of {PEAK / 1e12:.0f} Tflop/s, measured on an H200 at {measured / 1e9:.1f} billion"
    yield PlanPart("learning a step", seconds, f"at most; {speed}")
    if isinstance(config.engine, Vllm):
        seconds = sampling_s(config, trainer.shape, trainer.parameters, config.engine.dtype, capacity, work)
        stated = f"at most {work.sampled:,} tokens an episode; half of 3.3 TB/s, stated, not measured"
        yield PlanPart("sampling a step", seconds, stated)


def _trainer_parts(config: Config, shape: Any, modules: MetaModules, parameters: int) -> Iterator[PlanPart]:
    """The trainer's process, or one of several learners, of which each keeps a slice."""
    learner, scale = modules.learner, config.scale
    slices = scale.learners // scale.replicas if scale is not None else 1
    muon = hidden_matrices(learner.model) if config.optim.kind == "muon" else []
    policy = kept_bytes(learner.model.parameters(), muon)
    value = kept_bytes(learner.value.parameters()) if learner.value is not None else KeptBytes(0, 0, 0)
    count = f"{parameters / 1e9:.2f} billion"
    trained = "adapters learn" if config.model.lora is not None else "all learn, in float32"
    yield PlanPart("weights", policy.weights / slices, f"{count}, {trained}" + _sliced(slices))
    yield PlanPart("gradients", policy.gradients / slices)
    kept = "two moments; Muon has one" if muon else "two moments"
    yield PlanPart("Muon and AdamW" if muon else "AdamW", policy.moments / slices, kept)
    if learner.value is not None:
        yield PlanPart("critic", value.total / slices, "a trunk of its own: weights, gradients, moments")
    if learner.reference is not None:
        copied = learner.reference is not learner.model
        reference = kept_bytes(learner.reference.parameters()).weights if copied else 0
        yield PlanPart("reference", reference / slices, "a copy" if copied else "the model without its adapters")
    for kind, signal in modules.signals.items():
        own = [p for module in modules_of(signal, [learner.model]) for p in module.parameters()]
        if held := kept_bytes(own).total:
            what = "models of its own: weights, and what learning them keeps"
            yield PlanPart(f"signal {kind}", held / slices, what)
    yield from _copies(config, modules)
    tokens = max(config.optim.tokens_per_micro_batch, config.rollout.max_length)  # a row is never cut
    update = update_bytes(config, shape, tokens, sharded=slices > 1)
    gathered = GATHERED_BYTES * _largest_units(learner.model) if slices > 1 else 0
    if gathered:
        yield PlanPart("whole layers", gathered, "the head's and two layers' weights, while they compute")
    recompute = config.model.gradient_checkpointing
    other = update.without_checkpointing if recompute else update.with_checkpointing
    how = f"{other / GB:.1f} GB with{'out' if recompute else ''} checkpointing"
    yield PlanPart("activations", update.activations, f"a micro-batch of {tokens:,} tokens; {how}")
    yield PlanPart("logits", update.logits, "of the same, were every token sampled")
    moments: dict[str, float] = {"the optimizer's step": max(policy.moments, value.moments) / 2 / slices}
    if config.scale is None:
        moments["merged weights for a checkpoint"] = merged_bytes(learner.model) - policy.gradients
        moments["a float32 copy at the start"] = _start_bytes(config, modules, policy, value, parameters)
    largest = max(moments, key=lambda name: moments[name])
    more = moments[largest] - update.activations - update.logits - gathered
    if more > 0:
        yield PlanPart("another moment", more, f"beyond an update: {largest}")


def _sliced(slices: int) -> str:
    return f", a slice of {slices}" if slices > 1 else ""


def _copies(config: Config, modules: MetaModules) -> Iterator[PlanPart]:
    """Models beside the learner's, in this process. With [scale] they are in the controller, on its CPU."""
    if config.scale is not None:
        return
    if modules.engine is not modules.learner.model:
        held = kept_bytes(modules.engine.parameters())
        why = "checks vLLM's weights" if isinstance(config.engine, Vllm) else "sampled from"
        yield PlanPart("engine's copy", held.weights, f"in {config.model.dtype}; {why}")
    if not isinstance(config.engine, Vllm):
        rollout, shape = config.rollout, modules.learner.model.config
        beside = bool(rollout.staleness) and any(SIGNALS[name].plays for name in config.signals)
        sequences = rollout.concurrency * (2 if beside else 1)
        size = cache_bytes(shape, config.model.dtype, (sequences + 1) * rollout.max_length)
        more = ", and as many samples of signals" if beside else ""
        yield PlanPart("keys and values", size, f"of {rollout.concurrency} episodes{more}, as long as they may be")


def _start_bytes(config: Config, modules: MetaModules, policy: KeptBytes, value: KeptBytes, parameters: int) -> float:
    """Bytes beyond what is kept while the engine's copy is made: the model and its copy are float32 then."""
    if modules.engine is modules.learner.model:
        return 0.0
    kept_then = policy.total + value.total + kept_bytes(modules.engine.parameters()).weights
    return 8 * parameters - kept_then


def _largest_units(model: Any) -> int:
    """Weights that FSDP2 gathers at once: what is outside all layers, and two layers, as the next is fetched ahead."""
    layers = [layer for layer in model.base_model.layers]
    inside = sum(p.numel() for layer in layers for p in layer.parameters())
    every = sum(p.numel() for p in model.parameters())
    return every - inside + 2 * inside // len(layers)


def _server_part(config: Config, shape: Any, parameters: int, size: float) -> tuple[int, PlanPart | None]:
    """(tokens whose keys and values one vLLM server holds, its part of a GPU); none where others run it."""
    engine, scale = config.engine, config.scale
    if not isinstance(engine, Vllm) or engine.urls:
        return config.rollout.concurrency * config.rollout.max_length, None
    gpus = max(scale.server_gpus if scale is not None else 1, 1)
    share = engine.gpu_memory_utilization * size
    weights = (4 if engine.dtype == "float32" else 2) * parameters / gpus
    room = gpus * (share - weights - VLLM_OVERHEAD)
    tokens = int(room / cache_bytes(shape, engine.dtype, 1))
    at_once = max(tokens, 0) // config.rollout.max_length
    held = f"keys and values of {max(tokens, 0):,} tokens: {at_once} episodes at once"
    note = f"its share; {weights / GB:.1f} GB of weights, {held}"
    return tokens, PlanPart("vLLM", share, note)


def _notes(config: Config) -> Iterator[str]:
    limit = MAX_LR if config.model.lora is None else MAX_LORA_LR
    if config.optim.lr > limit:
        yield f"optim.lr={config.optim.lr:g} is for tiny models; large ones take 1e-6, or 1e-5 for adapters"
    own = [name for name, options in config.signals.items() if getattr(options, "lr", 0) > MAX_LR]
    rates = [*(f"signals.{name}.lr" for name in own), *(["value.lr"] if config.value is not None else [])]
    if rates:
        yield f"{', '.join(rates)}: tuned for tiny models too; nobody has tried it on a large one"
    if config.sft is not None:
        yield "the warm-up [sft] is not counted"


def _change(config: Config, spec: EnvSpec, size: float, trainer: _Trainer) -> str:
    """The first change with which the run fits; where none does by itself, with another share for vLLM."""
    tried = []
    for change in _candidates(config, _share(config, size, trainer)):
        changed = _with(config, change)
        other = trainer if "engine.gpu_memory_utilization" in change else _trainer(changed, spec)
        if not _plan(changed, spec, size, other).problems:
            return f"set {_text(change)}"
        tried.append((change, changed, other))
    for change, changed, other in tried:
        share = _share(changed, size, other)
        if share and not _plan(_with(changed, share), spec, size, other).problems:
            return f"set {_text({**change, **share})}"
    largest = max(trainer.parts, key=lambda part: part.amount)
    return (
        f"no one setting makes it fit, and the largest part are the {largest.name}: take a shorter "
        "rollout.max_length, a smaller model, or more GPUs (--setup qwen3-8b-8gpu shows how)"
    )


def _share(config: Config, size: float, trainer: _Trainer) -> dict[str, Any]:
    """The change that gives vLLM what the trainer leaves; empty where there is no such server here, or no room."""
    engine = config.engine
    if not isinstance(engine, Vllm) or engine.urls or config.scale is not None:
        return {}
    share = int((size - trainer.total) / size * 20) / 20
    return {"engine.gpu_memory_utilization": share} if share > 0 else {}


def _candidates(config: Config, share: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Changes that save memory, what costs least first; `share` is vLLM's other share, if there is one."""
    model, length, tokens = config.model, config.rollout.max_length, config.optim.tokens_per_micro_batch
    if not model.gradient_checkpointing:
        yield {"model.gradient_checkpointing": True}
    if share:
        yield share
    if tokens > length:
        yield {"optim.tokens_per_micro_batch": length}
    if model.lora is None:
        yield {"model.lora.rank": 16}
    if config.scale is not None:
        yield {"scale.learners": 2 * config.scale.learners}
    yield {"rollout.max_length": length // 2, "optim.tokens_per_micro_batch": min(tokens, length // 2)}


def _with(config: Config, change: Mapping[str, Any]) -> Config:
    """The configuration with options, by their dotted names, changed."""
    tree = config.model_dump()
    for name, value in change.items():
        *tables, last = name.split(".")
        table = tree
        for key in tables:
            table[key] = table[key] or {}
            table = table[key]
        table[last] = value
    return checked_model(Config, tree)


def _text(change: Mapping[str, Any]) -> str:
    """The change as overrides of the command line."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in change.items())


def amount_of(number: float, unit: str) -> str:
    """A number as the plan prints it: GB, tokens or seconds."""
    if unit == "GB":
        return f"{number / GB:.1f} GB"
    return f"{number:,.0f}" if unit == "tokens" else f"{number:,.0f} s"


def table_rows(plan: RunPlan) -> Sequence[Sequence[tuple[str, str, str]]]:
    """Sections of (part, amount, note), as the command prints them."""
    sections = []
    for gpu in plan.gpus:
        rows = [(part.name, amount_of(part.amount, "GB"), part.note) for part in gpu.parts]
        fits = "fits" if gpu.fits else "does not fit"
        rows.append((gpu.name, amount_of(gpu.total, "GB"), f"of {gpu.size / GB:.0f} GB: {fits}"))
        sections.append(rows)
    tokens = plan.tokens
    rows = [(tokens.name, amount_of(tokens.amount, "tokens"), tokens.note)]
    rows += [(part.name, amount_of(part.amount, "seconds"), part.note) for part in plan.seconds]
    return [*sections, rows]
