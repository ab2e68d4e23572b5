"""vLLM servers on several machines: each is started by a Ray actor, with that actor's GPUs, and ends with it."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from agentgym.errors import PolicyFailure
from agentgym_trainers.config.sections import Config
from agentgym_trainers.distributed.ray_cluster import Cluster
from agentgym_trainers.engines.options import Vllm, weights_folder
from agentgym_trainers.engines.vllm.engine import server_flags
from agentgym_trainers.engines.vllm.server import LORA_RANKS, STARTUP_S, VllmServer
from agentgym_trainers.nn import checkpoint


class ServerHost:
    """A Ray actor that starts a server where Ray has placed it."""

    async def start(self, config: Config, folder: Path, shape: Any, log: Path) -> str:
        """The server's URL. `folder` has the first weights, `shape` is transformers' configuration of the model."""
        from ray.util import get_node_ip_address  # pyright: ignore[reportMissingImports]

        options, scale, rollout = config.engine, config.scale, config.rollout
        assert isinstance(options, Vllm)
        assert scale is not None
        seats = ceil(rollout.concurrency / scale.servers)
        flags = server_flags(options, folder, shape, seats, rollout.max_length, config.run.seed)
        flags = replace(flags, host=get_node_ip_address(), gpus=max(scale.server_gpus, 1))
        if (lora := config.model.lora) is not None and lora.rank <= LORA_RANKS[-1]:
            flags = replace(flags, lora_rank=lora.rank)
        self.server = VllmServer(flags, log)
        return await self.server.start()


def start_vllm_servers(cluster: Cluster, config: Config, folder: Path, model: Any, tokenizer: Any) -> tuple[str, ...]:
    """URLs of the run's servers, once all answer. Raises UsageError with the end of a log where one does not start."""
    options = config.engine
    assert isinstance(options, Vllm)
    shared = weights_folder(options, folder).resolve()
    checkpoint.save_model(shared / "start", model, tokenizer, model.state_dict())
    hosts = [cluster.place("server", ServerHost) for _ in range(cluster.options.servers)]
    calls = [
        host.start.remote(config, shared / "start", model.config, shared / f"server-{number}.log")
        for number, host in enumerate(hosts)
    ]
    try:
        return tuple(cluster.ray.get(calls, timeout=2 * STARTUP_S))
    except cluster.ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except cluster.ray.exceptions.RayError as error:
        raise PolicyFailure(f"a vLLM server could not be started in the cluster: {error}") from error
