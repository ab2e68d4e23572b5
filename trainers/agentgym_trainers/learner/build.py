"""The models of a run: what learns, its critic, what it is compared with, and what is sampled from."""

from __future__ import annotations

import copy
from typing import Any

import torch

from agentgym_trainers.config.sections import Config
from agentgym_trainers.learner.critic import Critic
from agentgym_trainers.learner.fsdp import shard
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.nn import lora
from agentgym_trainers.nn.device import device_of
from agentgym_trainers.nn.gradient_checkpointing import use_recompute
from agentgym_trainers.nn.precision import cast
from agentgym_trainers.nn.process_group import SINGLE_PROCESS, DataParallel


def placed(config: Config, model: Any) -> Any:
    """Move `model` to the device of this process. In a run of several processes the controller's model stays on the
    CPU: learners move their own copies."""
    return model.to(device_of(config.model.device)) if config.scale is None else model


def prepare(config: Config, model: Any) -> None:
    """Make `model`, in place, into what learns. Copies that are to be without adapters are made before."""
    options = config.model
    if options.lora is not None:
        lora.add_lora(cast(model, options.dtype), options.lora, config.run.seed)
    if options.gradient_checkpointing:
        use_recompute(model)


def build_learner(config: Config, model: Any, reference: Any, processes: DataParallel = SINGLE_PROCESS) -> Learner:
    """The learner, with what critic and reference the recipe asks for. `reference` is the model as RL began; with
    `model.lora` it is the model itself, whose adapters begin at zero. Several `processes` slice all of them."""
    value = None
    if config.value is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.run.seed)
            value = Critic(reference, config.value)
        if config.model.gradient_checkpointing:
            use_recompute(value.trunk)
    kl = config.loss.kl or (config.replay is not None and config.replay.loss.kl)
    kl = kl or not {"loss.kl", "replay.loss.kl"}.isdisjoint(config.schedules)
    frozen = None
    if kl or "ref_logprob_A" in config.all_needs:
        frozen = copy.deepcopy(reference).requires_grad_(False) if config.model.lora is None else model
    prepare(config, model)
    temperature, dtype = config.rollout.temperature, config.model.dtype
    if processes.size > 1:
        shard(processes, model, value=value, reference=frozen, dtype=dtype)
    return Learner(
        model, config.optim, temperature=temperature, value=value, reference=frozen, processes=processes, dtype=dtype
    )
