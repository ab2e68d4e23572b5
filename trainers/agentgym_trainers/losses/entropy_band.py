"""EPO's entropy band: entropy is wanted, but not far from what it has been (Xu et al. 2025, 2509.22576).

    L = L_RL − λ (H − β_k P),  P the penalty of being outside [low · H̄, high · H̄], H̄ the mean entropy of all past steps.

As published P is a constant α on each side of the band, so its gradient is zero everywhere and only −λ H acts.
Here P is a hinge, which has a gradient where it should act.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from agentgym_trainers.losses.regularizers import Regularizer


class EntropyBandOptions(BaseModel):
    """An entropy bonus that turns into its opposite outside a band around past entropy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    coefficient: float = Field(default=0.001, ge=0)
    """λ"""
    low: float = Field(default=0.8, ge=0)
    high: float = Field(default=1.2, ge=0)
    """Multiple of the mean past entropy. The published runs have 0 and 2."""
    penalty: float = Field(default=2.0, ge=0)
    """α. As a hinge it must exceed 1 (and 1 / `weight`) for entropy above the band to fall, since H itself has −1. The
    published runs have .05 and .1, as a constant."""
    weight: float = Field(default=1.0, ge=0)
    """β_k; the published one follows the schedule "epo"."""

    @model_validator(mode="after")
    def _band_fits(self) -> EntropyBandOptions:
        if self.low > self.high:
            raise ValueError(f"low is {self.low}, and that is above high, {self.high}")
        return self


class EntropyBand(Regularizer):
    """The entropy band, and the mean of every step's entropy so far; none before the first step."""

    def __init__(self) -> None:
        self._total, self._steps = 0.0, 0

    def penalty(self, entropy_A: Tensor, options: EntropyBandOptions) -> Tensor:
        return entropy_band(entropy_A, self.mean, options)

    def end_step(self, metrics: Mapping[str, float]) -> None:
        self.add(metrics["policy/entropy_trajectory"])

    @property
    def mean(self) -> float | None:
        return self._total / self._steps if self._steps else None

    def add(self, entropy: float) -> None:
        """A finished step's mean entropy. One that is not finite is no step."""
        if np.isfinite(entropy):
            self._total, self._steps = self._total + entropy, self._steps + 1

    def state_dict(self) -> dict[str, Any]:
        return {"total": self._total, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._total, self._steps = float(state["total"]), int(state["steps"])


def band_penalty(
    entropy_A: Tensor, mean: float | None, *, low: float = 0.8, high: float = 1.2, penalty: float = 2.0
) -> Tensor:
    """P of each token: penalty · (relu(H − high H̄) + relu(low H̄ − H)).

    Without a past (mean None) 0. The released code's is then 1 everywhere.
    """
    if mean is None:
        return torch.zeros_like(entropy_A)
    above, below = entropy_A - high * mean, low * mean - entropy_A
    return penalty * (above.relu() + below.relu())


def entropy_band(entropy_A: Tensor, mean: float | None, options: EntropyBandOptions) -> Tensor:
    """−H + β P for each token: to be scaled by the coefficient, reduced, and added to the loss."""
    spread = band_penalty(entropy_A, mean, low=options.low, high=options.high, penalty=options.penalty)
    return -entropy_A + options.weight * spread
