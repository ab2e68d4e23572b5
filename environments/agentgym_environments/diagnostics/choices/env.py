"""Choices: many decisions in a row, each of them right or wrong by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import Outcome, TurnEnv, split_of, task_random

GOODS = ("silk", "wool", "linen", "hemp", "felt", "lace", "velvet", "cotton")
RIGHT = {
    "silk": "red", "wool": "green", "linen": "blue", "hemp": "red",
    "felt": "blue", "lace": "green", "velvet": "blue", "cotton": "red",
}  # fmt: skip
"""The color of each good, in every task: only reward shows it."""


class Choices(TurnEnv):
    """Every place shows one good; the color that is said is right or wrong for it, whatever was said before.

    length: places, each worth 1 / length.
    dense: a right color is rewarded at once; otherwise all of them together after the last place.
    """

    def __init__(self, spec: EnvSpec | None = None, *, length: int = 12, dense: bool = True) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        if length < 4:
            raise ConfigError(f"choices: length is at least 4, so that splits have different tasks; not {length}")
        super().__init__(spec.model_copy(update={"max_turns": length + max(6, length // 4)}))
        self.length, self.dense = length, dense
        self.goods: list[str] = []
        self.place, self.right = 0, 0

    def begin(self, split: str, task: int) -> None:
        self.goods, self.place, self.right = goods_of(self.length, split, task), 0, 0

    def observe(self) -> str:
        return f"{self.goods[self.place]} here" if self.place < self.length else f"{self.right} right"

    def act(self, action: str) -> Outcome | None:
        if action not in self.env_spec.actions or self.place == self.length:
            return None
        hit = RIGHT[self.goods[self.place]] == action
        self.right, self.place = self.right + hit, self.place + 1
        ended = self.place == self.length
        reward = hit / self.length if self.dense else ended * self.right / self.length
        return Outcome(reward, ended, success=ended and self.right == self.length)

    def key(self) -> str:
        return " ".join(self.goods[self.place :]) or "end"

    def describe(self) -> dict[str, Any]:
        offered = list(self.env_spec.actions) if self.place < self.length else []
        return {"available_actions": offered, "progress": self.place / self.length}

    def solver(self) -> str:
        self.require_running("solver")
        return RIGHT[self.goods[self.place]]

    def save(self) -> Any:
        return [self.goods, self.place, self.right]

    def load(self, state: Any) -> None:
        self.goods, self.place, self.right = list(state[0]), int(state[1]), int(state[2])


def goods_of(length: int, split: str, task: int) -> list[str]:
    """The goods of a task, drawn until they belong to its split."""
    rng = task_random("choices", length, split, task)
    while True:
        goods = [rng.choice(GOODS) for _ in range(length)]
        if split_of(" ".join(goods)) == split:
            return goods
