"""Placement of a run's processes: its table [scale]."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class RayOptions(BaseModel):
    """Learners, rollout workers and vLLM servers on the machines of a Ray cluster. Nothing here decides what is learned
    but in the last digits, so a run may be resumed with other numbers: edit its config.toml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["ray"]
    learners: int = Field(default=1, gt=0)
    """Processes that learn; each keeps a slice of every weight, gradient and optimizer state (FSDP2)."""
    replicas: int = Field(default=1, gt=0)
    """Copies of the weights, each sliced between `learners / replicas` neighbouring processes. Layers are then gathered
    within a replica, such as a machine's GPUs, and only gradients are summed between replicas."""
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
    """GPUs of each server, which cuts the model into as many slices."""
    deadline_s: float = Field(default=600.0, gt=0)
    """Seconds to wait for room in the cluster, and for every answer of a learner."""

    @model_validator(mode="after")
    def _replicas_divide_learners(self) -> RayOptions:
        if self.learners % self.replicas:
            raise ValueError(
                f"scale.replicas = {self.replicas} must divide scale.learners = {self.learners}: every replica has as "
                "many processes"
            )
        return self
