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
DECISIVE = "silk"


class Choices(TurnEnv):
    """Every place shows one good; the color that is said is right or wrong for it, whatever was said before.

    length: places, each worth 1 / length.
    dense: a right color is rewarded at once; otherwise all of them together after the last place.
    one: only the one place that shows DECISIVE counts, and is worth 1.
    vary: tasks have a quarter of `length` to all of it places, and say how many are to come.
    """

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        length: int = 12,
        dense: bool = True,
        one: bool = False,
        vary: bool = False,
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        least = 12 if vary else 4
        if length < least:
            raise ConfigError(f"choices: length is at least {least}, so that splits have different tasks; not {length}")
        super().__init__(spec.model_copy(update={"max_turns": length + max(6, length // 4)}))
        self.length, self.dense, self.one, self.vary = length, dense, one, vary
        self.goods: list[str] = []
        self.place, self.right = 0, 0

    def begin(self, split: str, task: int) -> None:
        self.goods = goods_of(self.length, split, task, one=self.one, vary=self.vary)
        self.place, self.right = 0, 0

    def observe(self) -> str:
        if self.place == len(self.goods):
            return f"{self.right} right"
        shown = f"{self.goods[self.place]} here"
        return f"{shown}, {len(self.goods) - self.place} to go" if self.vary else shown

    def act(self, action: str) -> Outcome | None:
        if action not in self.env_spec.actions or self.place == len(self.goods):
            return None
        good = self.goods[self.place]
        hit = RIGHT[good] == action and (good == DECISIVE or not self.one)
        self.right, self.place = self.right + hit, self.place + 1
        ended, counted = self.place == len(self.goods), 1 if self.one else len(self.goods)
        worth = 1 if self.one else self.length
        reward = hit / worth if self.dense else ended * self.right / worth
        return Outcome(reward, ended, success=ended and self.right == counted)

    def key(self) -> str:
        return " ".join(self.goods[self.place :]) or "end"

    def describe(self) -> dict[str, Any]:
        offered = list(self.env_spec.actions) if self.place < len(self.goods) else []
        return {"available_actions": offered, "progress": self.place / len(self.goods)}

    def solver(self) -> str:
        self.require_running("solver")
        return RIGHT[self.goods[self.place]]

    def save(self) -> Any:
        return [self.goods, self.place, self.right]

    def load(self, state: Any) -> None:
        self.goods, self.place, self.right = list(state[0]), int(state[1]), int(state[2])


def goods_of(length: int, split: str, task: int, *, one: bool = False, vary: bool = False) -> list[str]:
    """The goods of a task, drawn until they belong to its split."""
    rng = task_random("choices", length, split, task)
    while True:
        count = rng.randint(length // 4, length) if vary else length
        goods = [rng.choice([good for good in GOODS if not one or good != DECISIVE]) for _ in range(count)]
        if one:
            goods[rng.randrange(count)] = DECISIVE
        if split_of(" ".join(goods)) == split:
            return goods
