"""Where a run's processes are placed: its table [scale]; and what cannot be spread, told before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from agentgym_trainers.config.sections import Config


class RayOptions(BaseModel):
    """Learners, rollout workers and vLLM servers on the machines of a Ray cluster. Nothing here decides what is learned
    but in the last digits, so a run may be resumed with other numbers: edit its config.toml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["ray"]
    learners: int = Field(default=1, gt=0)
    """Processes that learn; each keeps a slice of every weight, gradient and optimiser state (FSDP2)."""
    learner_cpus: float = Field(default=1.0, gt=0)
    learner_gpus: int = Field(default=0, ge=0, le=1)
    workers: int = Field(default=1, gt=0)
    """Processes that play episodes, each with its share of `rollout.concurrency`."""
    worker_cpus: float = Field(default=1.0, gt=0)
    servers: int = Field(default=0, ge=0)
    """vLLM servers to place, for engine.kind = "vllm"; 0 where engine.urls names running ones, or workers sample
    themselves."""
    server_cpus: float = Field(default=1.0, gt=0)
    server_gpus: int = Field(default=1, ge=0)
    """Of each server, which cuts the model into as many slices."""
    deadline_s: float = Field(default=600.0, gt=0)
    """For room in the cluster, and for every answer of a learner."""


ALONE = frozenset({"judge", "role"})
"""Signals that read neither weights nor engine, which are in other processes."""


def check_scale(config: Config) -> None:
    """Raises ValueError with what to change where a part cannot be spread over machines."""
    options, rollout = config.scale, config.rollout
    if options is None:
        return
    reading = sorted(set(config.signals) - ALONE)
    vllm = config.engine.kind == "vllm"
    for wrong, why in (
        (config.source.kind != "online", f'source.kind must be "online", not {config.source.kind!r}'),
        (
            bool(reading),
            f"[signals.{''.join(reading[:1])}] reads the policy's weights, which the learners have: remove it",
        ),
        (
            rollout.concurrency < options.workers,
            f"rollout.concurrency must be at least scale.workers, {options.workers}",
        ),
        (
            options.servers > 0 and not vllm,
            'scale.servers are vLLM\'s: set engine.kind = "vllm", or scale.servers = 0',
        ),
        (
            vllm and bool(options.servers) == bool(getattr(config.engine, "urls", ())),
            "vLLM's servers are either placed (scale.servers above 0) or named (engine.urls)",
        ),
        (getattr(config.engine, "in_process", False), "vLLM runs in servers: leave out engine.in_process"),
    ):
        if wrong:
            raise ValueError(f"with [scale], {why}")
