"""Common parts of learned signals: optimizer, outcome of a trajectory, and figures of calibration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from agentgym.rollouts.trajectory import Trajectory
from agentgym_trainers.data.token_segments import as_tensor, segment_sum
from agentgym_trainers.learner.fsdp import shard_optimizer_state_dict, shard_state_dict
from agentgym_trainers.nn.process_group import SINGLE_PROCESS, DataParallel

Outcome = Literal["success", "return"]


class FitOptions(BaseModel):
    """Training of a learned signal: AdamW on each step's whole batch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lr: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    epochs: int = Field(default=1, gt=0)
    """Optimizer steps on each batch."""
    fit_first: bool = False
    """Fit before the batch is annotated. Unset, credit is what the signal said before it had seen these outcomes."""


class SignalOptimizer:
    """AdamW that clips, checks and reports the norm of the gradient."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], options: FitOptions, processes: DataParallel = SINGLE_PROCESS
    ) -> None:
        self.parameters, self.max_grad_norm, self.processes = list(parameters), options.max_grad_norm, processes
        self.adamw = torch.optim.AdamW(
            self.parameters, lr=options.lr, betas=(0.9, 0.99), weight_decay=options.weight_decay, foreach=True
        )

    def step(self) -> float:
        """The norm of all processes' gradient before it was clipped. One that is not finite, or 0, steps nothing."""
        self.processes.sum_gradients(self.parameters)
        norm = clip_gradients(self.parameters, self.max_grad_norm)
        if np.isfinite(norm) and norm > 0:
            self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        return norm

    def state_dict(self) -> dict[str, Any]:
        return self.adamw.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adamw.load_state_dict(shard_optimizer_state_dict(state, self.adamw))


def clip_gradients(parameters: Iterable[nn.Parameter], most: float) -> float:
    """The norm of all gradients before they were clipped to `most`, of sliced and whole parameters together."""
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    kinds = [[p for p in trained if isinstance(p, DTensor) is sliced] for sliced in (False, True)]
    norms = [nn.utils.get_total_norm([p.grad for p in kind if p.grad is not None]) for kind in kinds if kind]
    norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    if not norms:
        return 0.0
    norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    for kind in kinds:
        nn.utils.clip_grads_with_norm_(kind, most, norm)
    return norm.item()


def load_module(module: nn.Module, state: dict[str, Any]) -> None:
    """Load a module's whole state, of which this process keeps its slices."""
    module.load_state_dict(shard_state_dict(state, module.state_dict()))


def outcomes(trajectories: Sequence[Trajectory], kind: Outcome) -> np.ndarray:
    """float64[M]: 1 for success and 0 for failure, or the sum of the environment's own rewards. Never of shaped ones,
    which may hold what the signal itself has said."""
    return np.array([float(t.success) if kind == "success" else t.score for t in trajectories])


def mean_by(column: Tensor, index: np.ndarray, size: int) -> Tensor:
    """[size]: means of the entries that have each index."""
    count = np.maximum(np.bincount(index, minlength=size), 1)
    return segment_sum(column, index, size) / as_tensor(count, column)


def calibration(prediction: np.ndarray, came: np.ndarray) -> dict[str, float]:
    """`correlation`, Pearson's, NaN where either never varies; of what was said less what came, `error`, the mean
    square, and `bias`, the mean."""
    gap, x, y = prediction - came, prediction - prediction.mean(), came - came.mean()
    vary = all(np.abs(part).max() > 1e-6 * np.abs(column).max() for part, column in ((x, prediction), (y, came)))
    return {
        "correlation": float((x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum())) if vary else float("nan"),
        "error": float((gap**2).mean()),
        "bias": float(gap.mean()),
    }
