"""The value head: V of a state, read before a token is sampled.

A turn's value is read before its first sampled token, so it is the state's and not the action's; an episode that was
cut is continued by the value of its final observation.

    scalar     V = w·h + b, trained on ½ (V − G)²
    two_class  V = p_1 of two classes, trained by cross-entropy on targets in [0, 1]
    hl_gauss   V = Σ p_i mid_i over bins, trained by cross-entropy on a smoothed histogram (2403.03950)
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from agentgym_trainers.losses.value import (
    expectation,
    hl_gauss_loss,
    padded_edges,
    two_class_loss,
    value_loss,
)


class ReadoutOptions(BaseModel):
    """Head of a critic: the form of its values, and how they are fitted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    head: Literal["scalar", "two_class", "hl_gauss"] = "scalar"
    """"scalar": regression. "two_class": cross-entropy on targets in [0, 1], for environments that pay 0 or 1 at the
    end. "hl_gauss": cross-entropy over bins of `support`."""
    support: tuple[float, float] = (0.0, 1.0)
    """Least and greatest return that "hl_gauss" must tell apart; targets beyond are clamped. Bins go on for 3 sigma at
    each end, without which values near the ends would be drawn inwards."""
    bins: int = Field(default=51, gt=6)
    """Bins of "hl_gauss", padding included."""
    initial: float | None = None
    """Value before anything is learned; unset, 0 for "scalar" and the middle of the range for the others."""

    @model_validator(mode="after")
    def _initial_fits(self) -> ReadoutOptions:
        low, high = self.range
        if self.initial is not None and not low < self.initial < high:
            raise ValueError(f"initial must lie between {low:g} and {high:g} for head = {self.head!r}")
        return self

    @property
    def range(self) -> tuple[float, float]:
        """Values strictly between these can be said."""
        edges, _ = padded_edges(*self.support, self.bins)
        if self.head == "hl_gauss":
            return float(edges[0] + edges[1]) / 2, float(edges[-2] + edges[-1]) / 2
        return (0.0, 1.0) if self.head == "two_class" else (-float("inf"), float("inf"))


class Readout(nn.Linear):
    """A linear layer whose outputs are a value, or the logits of one. Its weight is zero at first: V is a constant."""

    edges: Tensor
    support: Tensor

    def __init__(self, size: int, options: ReadoutOptions) -> None:
        edges, sigma = padded_edges(*options.support, options.bins)
        classes = torch.tensor([0.0, 1.0]) if options.head == "two_class" else (edges[1:] + edges[:-1]) / 2
        super().__init__(size, 1 if options.head == "scalar" else len(classes))
        self.options, self.sigma = options, sigma
        self.register_buffer("edges", edges.float(), persistent=False)
        self.register_buffer("support", classes.float(), persistent=False)
        nn.init.zeros_(self.weight)
        with torch.no_grad():
            self.bias.copy_(_first_bias(classes.double(), options))

    def forward(self, hidden_kH: Tensor) -> Tensor:
        """float32[k, outputs]: what `read` and `loss` take, whatever the trunk computed in."""
        with torch.autocast(hidden_kH.device.type, enabled=False):
            return super().forward(hidden_kH.to(self.weight.dtype))

    def read(self, output: Tensor) -> Tensor:
        """float32[k]: the values."""
        return output[:, 0] if self.options.head == "scalar" else expectation(output, self.support)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """float32[k]: for each value, to be weighed and summed."""
        if self.options.head == "scalar":
            return value_loss(output[:, 0], target)
        if self.options.head == "two_class":
            return two_class_loss(output, target)
        return hl_gauss_loss(output, target.clamp(*self.options.support), self.edges, self.sigma)


class ValueOptions(ReadoutOptions):
    """A critic."""

    lr: float = Field(default=1e-3, gt=0)
    warmup: int = Field(default=0, ge=0)
    """RL steps at the start in which the critic learns and no token has an advantage. V is a constant at first, with
    which advantages are those of rewards to come, so that few need this."""
    extra_epochs: int = Field(default=0, ge=0)
    """Further passes of the critic alone over each step's episodes, after the policy's."""


class Critic(nn.Module):
    """A readout, constant at first, on a trunk of its own: a copy of the policy's as it is when RL begins."""

    def __init__(self, model: Any, options: ValueOptions) -> None:
        super().__init__()
        self.options = options
        self.trunk = copy.deepcopy(model.base_model)
        self.head = Readout(model.config.get_text_config().hidden_size, options).to(model.device, torch.float32)

    def forward(self, inputs: dict[str, Any], at: Tensor) -> Tensor:
        """float32[len(at), outputs] at packed positions `at` of `inputs`, for `read` and `loss`."""
        return self.head(self.trunk(**inputs).last_hidden_state[0, at])

    def read(self, output: Tensor) -> Tensor:
        """float32[k]: V from what `forward` gave."""
        return self.head.read(output)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """float32[k]: for each V, to be weighed and summed."""
        return self.head.loss(output, target)


def _first_bias(support: Tensor, options: ReadoutOptions) -> Tensor:
    """Bias with which V is `options.initial`."""
    if options.head == "scalar":
        return torch.tensor([options.initial or 0.0])
    middle = float(support.mean())
    return _tilt(support, middle if options.initial is None else options.initial) * (support - middle)


def _tilt(support: Tensor, mean: float) -> float:
    """t such that p_i ∝ exp(t · support_i) has this mean: of all distributions with it, the one most spread."""
    low, high = -1e4, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        if float(expectation(middle * support, support)) < mean:
            low = middle
        else:
            high = middle
    return (low + high) / 2
