"""The engine of a configuration, and how it samples."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from agentgym_trainers.config.sections import Config
from agentgym_trainers.engines import ENGINES
from agentgym_trainers.engines.base import Engine, EngineRoom, Sampling
from agentgym_trainers.nn.precision import cast
from agentgym_trainers.rollout.tokens import ChatTemplate


def build_engine(config: Config, folder: Path, model: Any, tokenizer: Any, *, signals_play: bool = False) -> Engine:
    """The recipe's engine. Without a model it attaches to servers that another process refreshes. `signals_play`: where
    episodes are played while a step learns, its signals have room for as many sequences beside theirs."""
    rollout, kind = config.rollout, ENGINES[config.engine.kind]
    sequences = rollout.concurrency * (2 if signals_play and rollout.staleness else 1)
    room = EngineRoom(sequences, rollout.max_length, rollout.lockstep, config.run.seed)
    return kind.build(config.engine, model and inference_copy(config, model), tokenizer, folder, room)


def inference_copy(config: Config, model: Any) -> Any:
    """The model that an engine in this process samples from: the model itself, or a plain copy where that is to have
    adapters, to compute in another precision than its weights are in, or to be learned while it is sampled from."""
    if config.model.lora is None and config.model.dtype == "float32" and not config.rollout.staleness:
        return model
    return cast(copy.deepcopy(model).requires_grad_(False), config.model.dtype)


def sampling_params(config: Config, template: ChatTemplate) -> Sampling:
    return Sampling(config.rollout.temperature, config.rollout.max_new_tokens, template.stop_ids())
