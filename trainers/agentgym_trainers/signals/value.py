"""The value head: V of a state, read before a token is sampled.

A turn's value is read before its first sampled token, so it is the state's and not the action's; an episode that was
cut is continued by the value of its final observation.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from agentgym_trainers.losses.value import value_loss


class ValueOptions(BaseModel):
    """A scalar critic."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trunk: Literal["own", "detached", "shared"] = "own"
    """"own": a copy of the policy's trunk as it was when RL began, trained by the value loss alone. "detached": reads
    the policy's hidden states. "shared": so does it, and its loss moves the policy's trunk too."""
    lr: float = Field(default=1e-3, gt=0)
    warmup: int = Field(default=0, ge=0)
    """RL steps at the start in which the critic learns and no token has an advantage: until then V says nothing."""
    coefficient: float = Field(default=1.0, gt=0)
    """Weighs the value loss; with an own or detached trunk it only scales the critic's gradient."""


class ValueHead(nn.Module):
    """A linear head, zero at first so that V begins at 0, on a trunk."""

    def __init__(self, model: Any, options: ValueOptions) -> None:
        super().__init__()
        self.options = options
        self.trunk = copy.deepcopy(model.base_model) if options.trunk == "own" else None
        self.head = nn.Linear(model.config.hidden_size, 1).to(model.device, torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def read(self, output: Tensor) -> Tensor:
        """float32[k]: V from what `forward` gave."""
        return output

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """float32[k]: for each value, to be weighed and summed."""
        return value_loss(output, target)

    def forward(self, inputs: dict[str, Any], policy_hidden_TH: Tensor | None, at: Tensor) -> Tensor:
        """float32[k]: the head's output at packed positions `at`; `inputs` go to the own trunk, if there is one."""
        if self.trunk is not None:
            hidden = self.trunk(**inputs).last_hidden_state[0]
        else:
            assert policy_hidden_TH is not None
            hidden = policy_hidden_TH.detach() if self.options.trunk == "detached" else policy_hidden_TH
        return self.head(hidden[at].to(self.head.weight.dtype))[:, 0]
