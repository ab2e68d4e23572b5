"""The plain source: the policy plays, everything is used once."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from agentgym.rollouts.trajectory import Group
from agentgym_trainers.rollout.sources.base import Collector


class Online(BaseModel):
    """Every step the present policy plays each proposed task `rollout.group_size` times."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["online"] = "online"


class OnlineSource:
    def __init__(self, options: Online) -> None:
        self.options = options

    async def collect(self, trainer: Collector, groups: int) -> list[Group]:
        return await trainer.play(trainer.curriculum.propose(groups))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
