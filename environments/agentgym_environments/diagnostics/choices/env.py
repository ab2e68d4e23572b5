"""Choices: many decisions in a row, each of them right or wrong by itself."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

from agentgym.env import Action
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
COLORS = ("red", "green", "blue")


class Choices(TurnEnv):
    """Every place shows a good; the color that is said is right or wrong for it, whatever was said before.

    length: goods, each worth 1 / length.
    together: goods that a place shows; the action names a color for each of them, in order.
    dense: a right color is rewarded at once; otherwise all of them together after the last place.
    one: only the one place that shows DECISIVE counts, and is worth 1.
    bonus: paid at the end of every other task, and charged at the end of the others, whatever was said.
    feedback: the next observation says whether the last color was right.
    """

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        length: int = 12,
        dense: bool = True,
        one: bool = False,
        bonus: float = 0.0,
        feedback: bool = False,
        together: int = 1,
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        if length < 4:
            raise ConfigError(f"choices: length is at least 4, so that splits have different tasks; not {length}")
        if not 1 <= together <= 4 or length % together:
            raise ConfigError(f"choices: together is 1 to 4 and divides length, {length}; not {together}")
        places = length // together
        actions = tuple(" ".join(colors) for colors in product(COLORS, repeat=together))
        super().__init__(spec.model_copy(update={"max_turns": places + max(6, places // 4), "actions": actions}))
        self.together = together
        self.length, self.dense, self.one, self.bonus, self.feedback = length, dense, one, bonus, feedback
        self.goods: list[str] = []
        self.place, self.right, self.extra, self.hit = 0, 0, 0.0, False

    def begin(self, split: str, task: int) -> None:
        self.goods = goods_of(self.length, split, task, one=self.one)
        self.place, self.right, self.extra, self.hit = 0, 0, self.bonus * sign_of(task), False

    def observe(self) -> str:
        if self.place == len(self.goods):
            return f"{self.right} right"
        shown = f"{' '.join(self.goods[self.place : self.place + self.together])} here"
        if self.feedback and self.place:
            shown = f"{'right' if self.hit else 'wrong'}, {shown}"
        return f"{shown}, {'bonus' if self.extra > 0 else 'fee'}" if self.extra and not self.place else shown

    def act(self, action: str) -> Outcome | None:
        action = " ".join(action.replace(",", " ").split())  # "red, green, blue"
        if action not in self.env_spec.actions or self.place == len(self.goods):
            return None
        goods = self.goods[self.place : self.place + self.together]
        pairs = zip(goods, action.split(), strict=True)
        hits = sum(RIGHT[good] == color and (good == DECISIVE or not self.one) for good, color in pairs)
        self.hit = hits == len(goods)
        self.right, self.place = self.right + hits, self.place + len(goods)
        ended, counted = self.place == len(self.goods), 1 if self.one else self.length
        reward = hits / counted if self.dense else ended * self.right / counted
        return Outcome(reward + ended * self.extra, ended, success=ended and self.right == counted)

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        if truncated:  # else a fee is saved by saying nothing until the turns are used up
            reward += self.extra
        return observation, reward, terminated, truncated, info

    def key(self) -> str:
        rest = " ".join(self.goods[self.place :]) or "end"
        return f"{rest} {self.extra:+g}" if self.extra else rest

    def describe(self) -> dict[str, Any]:
        offered = list(self.env_spec.actions) if self.place < len(self.goods) else []
        done = self.right if self.feedback else self.place
        return {"available_actions": offered, "progress": done / len(self.goods)}

    def solver(self) -> str:
        self.require_running("solver")
        return " ".join(RIGHT[good] for good in self.goods[self.place : self.place + self.together])

    def save(self) -> Any:
        return [self.goods, self.place, self.right, self.extra, self.hit]

    def load(self, state: Any) -> None:
        self.goods, self.place, self.right = list(state[0]), int(state[1]), int(state[2])
        self.extra, self.hit = float(state[3]), bool(state[4])


def sign_of(task: int) -> int:
    """1 where the bonus is paid, −1 where it is charged: half of any ten tasks in a row, and of every tenth of them."""
    return -1 if (task + task // 10 + task // 100) % 2 else 1


def goods_of(length: int, split: str, task: int, *, one: bool = False) -> list[str]:
    """The goods of a task, drawn until they belong to its split."""
    rng = task_random("choices", length, split, task)
    while True:
        goods = [rng.choice([good for good in GOODS if not one or good != DECISIVE]) for _ in range(length)]
        if one:
            goods[rng.randrange(length)] = DECISIVE
        if split_of(" ".join(goods)) == split:
            return goods
