"""The parts of a run, put together as its configuration says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentgym.rollouts.runner import Limits, Runner
from agentgym.session import Session
from agentgym.spec import EnvSpec
from agentgym_trainers.config.sections import Config
from agentgym_trainers.data.filtering import Selection
from agentgym_trainers.data.replay_buffer import ReplayBuffer
from agentgym_trainers.distributed.build import build_distributed
from agentgym_trainers.distributed.remote_signals import build_signal
from agentgym_trainers.engines.build import build_engine, sampling_params
from agentgym_trainers.learner.build import build_learner
from agentgym_trainers.monitoring.guards import Guards
from agentgym_trainers.rollout.player import PolicyPlayer
from agentgym_trainers.rollout.sources import SOURCES
from agentgym_trainers.rollout.sources.asynchronous import AsynchronousSource
from agentgym_trainers.rollout.tasks import UniformTasks
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.signals import SIGNALS
from agentgym_trainers.signals.base import SignalDependencies
from agentgym_trainers.train import Trainer
from agentgym_trainers.validate import validate_config


def build(
    config: Config,
    folder: Path,
    spec: EnvSpec,
    open_session: Callable[[], Awaitable[Session]],
    model: Any,
    reference: Any,
    tokenizer: Any,
) -> Trainer:
    """The parts of a run around a model. `reference` is the model as RL began; it is copied only where it is used. With
    `model.lora` the two are one, which is given adapters."""
    validate_config(config)
    rollout = config.rollout
    limits = Limits(config.env.max_turns, config.env.episode_s)
    runner = Runner(open_session, config.prompt_format, limits, rollout.concurrency)
    learner = None
    kind = SOURCES[config.source.kind]
    signals_play = any(SIGNALS[name].plays for name in config.signals)
    template = ChatTemplate(tokenizer, config.model.template)
    sampling = sampling_params(config, template)
    if config.scale is None:
        engine = build_engine(config, folder, model, tokenizer, signals_play=signals_play)
        player = PolicyPlayer(engine, template, sampling, runner)
        runner = kind.runner(config, runner, folder)
    else:
        engine, player, learner = build_distributed(
            config, folder, runner, model, reference, tokenizer, signals_play=signals_play
        )
        runner = player.runner
    curriculum = UniformTasks(spec.splits[config.env.split], config.run.seed)
    parts = SignalDependencies(
        model=model, reference=reference, template=template, sampling=sampling, seed=config.run.seed,
        tokens_per_micro_batch=config.optim.tokens_per_micro_batch, player=player, spec=spec, folder=folder,
    )  # fmt: skip
    signals = {name: build_signal(name, options, parts, learner) for name, options in config.signals.items()}
    source = AsynchronousSource() if rollout.staleness else kind.build(config.source)
    guards = Guards(config.guards, signals)
    selection = Selection(config.select) if config.select is not None else None
    buffer = ReplayBuffer(config.replay) if config.replay is not None else None
    learner = learner or build_learner(
        config, model, reference
    )  # last: it may give the model adapters, which no copy should have
    return Trainer(
        config, folder, spec, runner, learner, engine, tokenizer, curriculum, source, signals, guards,
        selection, buffer,
    )  # fmt: skip
