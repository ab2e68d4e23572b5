"""The engine of a configuration, and how it samples."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from agentgym_trainers.config.sections import Config
from agentgym_trainers.engines.base import Engine, Sampling
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.engines.options import weights_folder
from agentgym_trainers.engines.vllm.engine import VllmEngine
from agentgym_trainers.nn.precision import cast
from agentgym_trainers.rollout.tokens import ChatTemplate


def build_engine(config: Config, folder: Path, model: Any, tokenizer: Any) -> Engine:
    """The recipe's engine, for a run in `folder`."""
    options, rollout = config.engine, config.rollout
    room = {"max_sequences": rollout.concurrency, "max_length": rollout.max_length}
    model = inference_copy(config, model)
    if options.kind == "vllm":
        return VllmEngine(options, model, tokenizer, weights_folder(options, folder), **room, seed=config.run.seed)
    return InProcessEngine(model, **room, lockstep=rollout.lockstep)


def inference_copy(config: Config, model: Any) -> Any:
    """What an engine in this process samples from: the model itself, or a plain copy where that is to have adapters, to
    compute in another precision than its weights are in, or to be learned while it is sampled from."""
    if config.model.lora is None and config.model.dtype == "float32" and not config.rollout.staleness:
        return model
    return cast(copy.deepcopy(model).requires_grad_(False), config.model.dtype)


def sampling_params(config: Config, template: ChatTemplate) -> Sampling:
    return Sampling(config.rollout.temperature, config.rollout.max_new_tokens, template.stop_ids())
