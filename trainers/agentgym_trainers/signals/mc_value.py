"""Values by Monte-Carlo branching: every visited state is played on from, with the present policy, every step.

Unbiased whatever the number of continuations, and as dear as it sounds: n continuations a turn cost about n · H / 2
turns for each turn of the batch. The gold standard that critics are measured against.
Kazemnejad et al. 2024 (VinePPO, 2410.01679).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from agentgym_credit.segments import reverse_scan
from agentgym_trainers.rollout.monte_carlo import BranchedValues, require_snapshots
from agentgym_trainers.signals.base import Signal

if TYPE_CHECKING:
    from agentgym_trainers.signals.base import SignalContext, SignalDependencies


class BranchedValueOptions(BaseModel):
    """The value of every visited state, measured by continuations from its snapshot (VinePPO)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    continuations: int = Field(default=9, ge=2)
    """Played from every state; the paper's nine."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount of what a continuation collects, a turn. The assigner's must be the same."""


class BranchedValue(Signal):
    """Has nothing to learn; `fit` tells what it cost and how far from the outcomes it was."""

    def __init__(self, options: BranchedValueOptions, parts: SignalDependencies) -> None:
        require_snapshots(parts.spec)
        self.options, self.parts = options, parts
        self._metrics: dict[str, float] = {}

    async def annotate(self, context: SignalContext) -> dict[str, np.ndarray]:
        """mc_value_N, mc_after_N and mc_se_N, the standard error of mc_after_N − mc_value_N."""
        parts, options = self.parts, self.options
        found = await parts.player.values(
            context.trajectories, (parts.seed, context.step, 3), continuations=options.continuations,
            gamma=options.gamma, seed=int(context.rng.integers(2**31)),
        )  # fmt: skip
        columns = columns_of(found, context.batch.reward_N, options.gamma)
        to_go_N = reverse_scan(context.batch.reward_N, context.batch.traj_N, options.gamma)
        known = ~np.isnan(found.value_N)
        self._metrics = {
            "continuations": float(found.played),
            "lost": float(found.lost),
            "turns": float(found.turns),
            "standard_error": float(found.value_se_N[known].mean()) if known.any() else float("nan"),
            "bias": float((found.value_N - to_go_N)[known].mean()) if known.any() else float("nan"),
        }
        return columns

    async def fit(self, context: SignalContext) -> dict[str, float]:
        """`bias` is the mean of V less what was collected from the turn on: near 0, or something is wrong."""
        return self._metrics

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def columns_of(found: BranchedValues, reward_N: np.ndarray, gamma: float = 1.0) -> dict[str, np.ndarray]:
    """The columns of a batch. A turn without an estimate, before it or after it, gets the value that leaves it without
    advantage, and an infinite standard error."""
    after_N = np.where(np.isnan(found.after_N), 0.0, found.after_N)
    missing_N = np.isnan(found.value_N) | np.isnan(found.after_N)
    value_N = np.where(missing_N, reward_N + gamma * after_N, found.value_N)
    error_N = np.where(missing_N, np.inf, np.hypot(found.value_se_N, gamma * found.after_se_N))
    return {"mc_value_N": value_N, "mc_after_N": after_N, "mc_se_N": error_N}
