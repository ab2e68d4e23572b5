"""A run spread over machines: what takes the place of its engine, its runner and its learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from agentgym.rollouts.runner import Runner
from agentgym_trainers.config.sections import Config
from agentgym_trainers.distributed.learner_group import LearnerGroup
from agentgym_trainers.distributed.ray_cluster import Cluster
from agentgym_trainers.distributed.rollout_workers import RemotePlayer, RemoteRunner, RolloutWorkerPool
from agentgym_trainers.distributed.vllm_servers import start_vllm_servers
from agentgym_trainers.engines import ENGINES
from agentgym_trainers.engines.base import Conversation
from agentgym_trainers.engines.build import build_engine, sampling_params
from agentgym_trainers.rollout.tokens import ChatTemplate


class BroadcastingEngine:
    """The controller's engine, for what is played here (evaluation); a refresh reaches the pool's, too."""

    def __init__(self, engine: Any, pool: RolloutWorkerPool, cluster: Cluster, shared: bool) -> None:
        """`shared`: the pool samples from the servers of `engine`, and must ask nothing while their weights change."""
        self.engine, self.pool, self.cluster = engine, pool, cluster
        self.max_length, self.version = engine.max_length, engine.version
        if shared:
            engine.others = pool

    def open(self, rng: np.random.Generator) -> Conversation:
        return self.engine.open(rng)

    async def refresh(self, weights: Mapping[str, Tensor], version: int) -> None:
        await self.engine.refresh(weights, version)
        self.version = version
        await self.pool.publish(weights, version)

    async def aclose(self) -> None:
        """And end all that was placed."""
        try:
            await self.engine.aclose()
        finally:
            self.cluster.close()


def build_distributed(
    config: Config,
    folder: Path,
    runner: Runner,
    model: Any,
    reference: Any,
    tokenizer: Any,
    *,
    signals_play: bool = False,
) -> tuple[BroadcastingEngine, RemotePlayer, LearnerGroup]:
    """Build the engine, player and learner of a run with [scale]. Closing the engine ends it all. Raises UsageError
    where the cluster has no room. `signals_play`: see `build_engine`."""
    assert config.scale is not None
    cluster = Cluster(config.scale)
    try:
        if config.scale.servers:
            urls = start_vllm_servers(cluster, config, folder, model, tokenizer)
            config = config.model_copy(update={"engine": config.engine.model_copy(update={"urls": urls})})
        pool = RolloutWorkerPool(cluster, config, folder, model, tokenizer, signals_play=signals_play)
        shared = ENGINES[config.engine.kind].servers
        learners = LearnerGroup(cluster, config, model, reference, tokenizer)
        engine = BroadcastingEngine(build_engine(config, folder, model, tokenizer), pool, cluster, shared)
    except BaseException:
        cluster.close()
        raise
    plain = {part.name: getattr(runner, part.name) for part in fields(Runner)}
    template = ChatTemplate(tokenizer, config.model.template)
    player = RemotePlayer(engine, template, sampling_params(config, template), RemoteRunner(**plain, pool=pool))
    return engine, player, learners
