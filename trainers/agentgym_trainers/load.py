"""A checkpoint as a policy, an engine or a served model, with the settings of the run that it lies in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from agentgym.errors import ConfigError
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym_trainers.config.sections import Config, RolloutOptions
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.nn.device import device_of
from agentgym_trainers.recipe import resolve
from agentgym_trainers.rollout.policy import TokenPolicy
from agentgym_trainers.rollout.served_model import ServedModel
from agentgym_trainers.rollout.tokens import ChatTemplate

OWN_CONFIG = "agentgym.toml"
"""File of a published model: the configuration of the run that it comes from."""


def load_served(path: Path, *, name: str | None, max_sequences: int, max_length: int | None) -> ServedModel:
    """The model of a checkpoint's folder. What requests do not say is the run's, when the checkpoint lies in one.

    Raises CheckpointError.
    """
    engine, template, config = checkpoint_engine(path, max_sequences=max_sequences, max_length=max_length)
    return ServedModel(
        engine,
        template,
        name=name or path.resolve().name,
        max_sequences=max_sequences,
        temperature=config.rollout.temperature if config is not None else 1.0,
        max_tokens=config.rollout.max_new_tokens if config is not None else None,
        fingerprint=f"fp_{checkpoint.weights_digest(path)[:12]}",
    )


def load_run(folder: Path) -> Config:
    """The configuration of a run's folder."""
    if not (folder / "config.toml").is_file():
        raise ConfigError(f"{folder} holds no run (no config.toml)")
    return resolve(folder / "config.toml")


@dataclass(frozen=True)
class LoadedPolicy:
    """A checkpoint that acts."""

    policy: TokenPolicy
    identity: str
    """Its path and a hash of its weights."""
    prompt_format: PromptFormat
    """The one it was trained with, when it lies in a run's folder."""


def checkpoint_policy(
    path: Path, *, temperature: float | None, max_new_tokens: int | None, max_sequences: int, seed: int = 0
) -> LoadedPolicy:
    """A policy of a checkpoint's folder. What is not given is the run's, when the checkpoint lies in one."""
    engine, template, config = checkpoint_engine(path, max_sequences=max_sequences)
    rollout = config.rollout if config is not None else RolloutOptions(max_new_tokens=256)
    sampling = Sampling(
        rollout.temperature if temperature is None else temperature,
        max_new_tokens or rollout.max_new_tokens,
        template.stop_ids(),
    )
    policy = TokenPolicy(engine, template, sampling, (seed, 10**9))
    digest = checkpoint.weights_digest(path)
    identity = f"{path} {digest[:12]} at temperature {sampling.temperature:g}"
    return LoadedPolicy(policy, identity, config.prompt_format if config is not None else PromptFormat())


def checkpoint_engine(
    path: Path, *, max_sequences: int, max_length: int | None = None
) -> tuple[InProcessEngine, ChatTemplate, Config | None]:
    """(engine, chat template, the run's configuration where there is one) of a checkpoint's folder.

    `max_length` is the run's unless given, else the model's, but at most 8192.
    """
    model, tokenizer = checkpoint.load_model(path)
    config = _config_of(path.resolve())
    if config is not None and config.run.threads is not None:
        torch.set_num_threads(config.run.threads)
    longest = model.config.get_text_config().max_position_embeddings
    if max_length is not None and max_length > longest:
        raise ConfigError(f"{path} takes at most {longest} tokens, not {max_length}")
    usual = config.rollout.max_length if config is not None else min(longest, 8192)
    model = model.to(device_of("auto"))  # not the run's: a checkpoint is read on other machines, too
    engine = InProcessEngine(model, max_sequences=max_sequences, max_length=max_length or usual)
    template = ChatTemplate(tokenizer, config.model.template if config is not None else None)
    return engine, template, config


def _config_of(path: Path) -> Config | None:
    """The configuration of the run that a checkpoint lies in or was published from."""
    for file in (path / OWN_CONFIG, path.parent.parent / "config.toml"):
        if file.is_file():
            return resolve(file)
    return None
