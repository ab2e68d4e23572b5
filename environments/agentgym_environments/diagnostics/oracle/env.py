"""Oracle: three decisions whose values, advantages and policy gradient are known in closed form.

fork --left--> amber --gold--> cedar --gold--> win (reward 1)
  |              +----blue--> dark --any---> lose
  +----right-> birch --gold--> cedar or dark, half and half
                 +----blue--> dark
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import Outcome, TurnEnv

ROOMS = ("fork", "amber", "birch", "cedar", "dark")

ACTIONS = {room: ("gold", "blue") for room in ROOMS} | {"fork": ("left", "right")}

TRANSITIONS: dict[tuple[str, str], dict[str, float]] = {
    ("fork", "left"): {"amber": 1.0},
    ("fork", "right"): {"birch": 1.0},
    ("amber", "gold"): {"cedar": 1.0},
    ("amber", "blue"): {"dark": 1.0},
    ("birch", "gold"): {"cedar": 0.5, "dark": 0.5},
    ("birch", "blue"): {"dark": 1.0},
    ("cedar", "gold"): {"win": 1.0},
    ("cedar", "blue"): {"lose": 1.0},
    ("dark", "gold"): {"lose": 1.0},
    ("dark", "blue"): {"lose": 1.0},
}
"""Probability of the next room, for every room and action; two rooms at most."""

# Closed form, for the policy that says each of a room's two words with probability 1/2, without discount.

VALUE = {"fork": 0.1875, "amber": 0.25, "birch": 0.125, "cedar": 0.5, "dark": 0.0}
"""V(s): expected return from a room."""

ADVANTAGE = {"fork": 0.0625, "amber": 0.25, "birch": 0.125, "cedar": 0.5, "dark": 0.0}
"""A(s, a) of a room's first word; minus this for its second."""

GRADIENT = {"fork": 0.03125, "amber": 0.0625, "birch": 0.03125, "cedar": 0.09375, "dark": 0.0}
"""dJ/dz(s), where z(s) is the logit of a room's first word over its second: P(s reached) * 1/2 * A(s, first)."""


class Oracle(TurnEnv):
    """Information: `state_key` is the room."""

    def __init__(self, spec: EnvSpec | None = None) -> None:
        super().__init__(spec or EnvSpec.load(Path(__file__).with_name("spec.toml")))
        self.room = "fork"

    def begin(self, split: str, task: int) -> None:
        self.room = "fork"

    def observe(self) -> str:
        if self.room in ("win", "lose"):
            return f"you {self.room}"
        if self.room == "fork":
            return "you are at the fork: left or right"
        return f"you are in the {self.room} room: gold or blue"

    def refuse(self, action: str) -> str:
        return f"not an action here; {self.observe()}"

    def act(self, action: str) -> Outcome | None:
        if action not in ACTIONS[self.room]:
            return None
        chances = TRANSITIONS[self.room, action]
        first, *second = chances
        self.room = first if self.np_random.random() < chances[first] else second[0]
        won = self.room == "win"
        return Outcome(float(won), ended=self.room in ("win", "lose"), success=won)

    def key(self) -> str:
        return self.room

    def describe(self) -> dict[str, Any]:
        return {"available_actions": list(ACTIONS.get(self.room, ()))}

    def solver(self) -> str:
        """The first word is never worse than the second."""
        self.require_episode("solver")
        return ACTIONS[self.room][0]

    def save(self) -> Any:
        return self.room

    def load(self, state: Any) -> None:
        self.room = state
