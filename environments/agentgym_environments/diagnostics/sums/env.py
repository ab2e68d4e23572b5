"""Sums: every reply is several decisions, and only the whole is told right or wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import Outcome, TurnEnv, split_of, task_random


class Sums(TurnEnv):
    """Sums of two numbers one after the other; a reply is the digits of one sum, the last digit first.

    digits: of each number.
    turns: sums, each worth 1 / turns, all of them told after the last one.
    """

    def __init__(self, spec: EnvSpec | None = None, *, digits: int = 4, turns: int = 3) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        if digits < 2 or turns < 1:
            raise ConfigError(f"sums: digits is at least 2 and turns at least 1; not {digits} and {turns}")
        super().__init__(spec.model_copy(update={"max_turns": turns + 2}))
        self.digits, self.turns = digits, turns
        self.numbers: list[list[int]] = []
        self.place, self.right = 0, 0

    def begin(self, split: str, task: int) -> None:
        self.numbers = numbers_of(self.digits, self.turns, split, task)
        self.place, self.right = 0, 0

    def observe(self) -> str:
        if self.place == self.turns:
            return f"{self.right} right"
        first, second = self.numbers[self.place]
        return f"{spelled(first, self.digits)} + {spelled(second, self.digits)}"

    def refuse(self, action: str) -> str:
        return f"not a number; say the digits of the sum, the last one first, as in 3 2 1 for 123\n{self.observe()}"

    def act(self, action: str) -> Outcome | None:
        text = action.replace(" ", "")
        if not text.isdecimal() or not text.isascii() or self.place == self.turns:
            return None
        hit = text == str(sum(self.numbers[self.place]))[::-1]
        self.right, self.place = self.right + hit, self.place + 1
        ended = self.place == self.turns
        return Outcome(ended * self.right / self.turns, ended, success=ended and self.right == self.turns)

    def key(self) -> str:
        return " ".join(f"{first}+{second}" for first, second in self.numbers[self.place :]) or "end"

    def describe(self) -> dict[str, Any]:
        return {"progress": self.place / self.turns}

    def solver(self) -> str:
        self.require_running("solver")
        return " ".join(str(sum(self.numbers[self.place]))[::-1])

    def save(self) -> Any:
        return [self.numbers, self.place, self.right]

    def load(self, state: Any) -> None:
        self.numbers = [[int(first), int(second)] for first, second in state[0]]
        self.place, self.right = int(state[1]), int(state[2])


def spelled(number: int, digits: int) -> str:
    """The digits with spaces between them, and zeros before them."""
    return " ".join(f"{number:0{digits}d}")


def numbers_of(digits: int, turns: int, split: str, task: int) -> list[list[int]]:
    """The pairs of a task; a pair belongs by its content to one split."""
    rng, pairs = task_random("sums", digits, turns, split, task), []
    while len(pairs) < turns:
        pair = [rng.randrange(10 ** (digits - 1), 10**digits) for _ in range(2)]
        if split_of(f"{pair[0]} {pair[1]}") == split:
            pairs.append(pair)
    return pairs
