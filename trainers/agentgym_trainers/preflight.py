"""Checks of a run before its first second of work: what is certain to fail is refused while nothing is written."""

from __future__ import annotations

from agentgym import registry
from agentgym.clients.client import Connection
from agentgym.errors import ConfigError
from agentgym.rollouts.policy import ContextFull
from agentgym_trainers.config.sections import Config
from agentgym_trainers.distributed.ray_cluster import require_ray
from agentgym_trainers.engines import ENGINES
from agentgym_trainers.engines.options import head_size_of
from agentgym_trainers.monitoring.tracking.trackers import require_trackers
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.nn.device import device_of
from agentgym_trainers.nn.vision import is_vision
from agentgym_trainers.rollout.environment import check_spec
from agentgym_trainers.rollout.sources import SOURCES
from agentgym_trainers.rollout.tokens import ChatTemplate, Transcript
from agentgym_trainers.signals import SIGNALS

CHECKED_TASKS = 4
"""Tasks of each split whose first prompt is measured."""


def check_start(config: Config) -> None:
    """Raise ConfigError or MissingDependency for what would fail later: a package, model, environment or file."""
    if config.scale is not None:
        require_ray()
    require_trackers(config.tracking)
    check_model(config)
    SOURCES[config.source.kind].check(config.source)
    if not registry.is_url(config.env.name):
        check_spec(config, registry.get_spec(config.env.name))


def check_model(config: Config) -> None:
    """Raise CheckpointError, ConfigError or MissingDependency where model, device or engine cannot be used."""
    path = config.model.path
    if config.scale is None:
        device_of(config.model.device)
    loaded = None if path is None else checkpoint.load_config(path)
    if config.model.shape.vision is not None if loaded is None else is_vision(loaded):
        check_images(config)
    head_size = config.model.shape.head_dim if loaded is None else head_size_of(loaded)
    ENGINES[config.engine.kind].check(config.engine, head_size)


def check_images(config: Config) -> None:
    """Raise ConfigError where a part of the run cannot be used with a vision-language model."""
    blind = sorted(name for name in config.signals if not SIGNALS[name].images)
    for wrong, why in (
        (not ENGINES[config.engine.kind].images, "engine.kind must be 'inprocess': no other engine is sent images"),
        (config.scale is not None, "[scale] cannot be used: images are not sent to its processes"),
        (
            bool(blind),
            f"[signals.{''.join(blind[:1])}] cannot be used: it makes sequences of its own, without their images",
        ),
    ):
        if wrong:
            raise ConfigError(f"with a vision-language model, {why}")


async def check_room(config: Config, env: Connection, template: ChatTemplate) -> None:
    """Raise ConfigError where the first prompt of a task and one response are longer than rollout.max_length."""
    rollout, spec, prompt_format = config.rollout, env.spec, config.prompt_format
    splits = {config.env.split: CHECKED_TASKS, config.eval.split: min(config.eval.tasks, CHECKED_TASKS)}
    session = env.session()
    try:
        for split, count in splits.items():
            for task in range(min(count, spec.splits[split])):
                step = await session.reset(seed=config.run.seed, options={"split": split, "task": task})
                transcript = Transcript(template, template.stop_ids(), prompt_format.tools(spec))
                messages = prompt_format.messages(spec, [], step.observation)
                try:
                    length = len(transcript.prompt(messages, rollout.max_length))
                    tokens = str(length)
                except ContextFull:  # so long that it need not be encoded
                    length, tokens = rollout.max_length + 1, f"more than {rollout.max_length}"
                if length + rollout.max_new_tokens > rollout.max_length:
                    also = "" if config.model.path is not None else " and model.tiny.max_length"
                    raise ConfigError(
                        f"the first prompt of {spec.id}'s task {task} ({split}) has {tokens} tokens, and with a "
                        f"response of {rollout.max_new_tokens} it does not fit rollout.max_length, "
                        f"{rollout.max_length}, which a whole episode shares: raise rollout.max_length{also}"
                    )
    finally:
        await session.close()
