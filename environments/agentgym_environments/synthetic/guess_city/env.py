"""Guess the city: which one is it? Questions about where it lies, how big it is and what is spoken there."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from agentgym.spec import EnvSpec
from agentgym_environments.base.guessing_env import AnswerTable, Guessing, plain
from agentgym_environments.synthetic.guess_city import atlas

SAME = {
    "larger than": "bigger than",
    "on coast": "on sea",
    "by sea": "on sea",
    "what continent": "which continent",
    "what language": "which language",
    "continent is it in": "continent is it on",
    "language is spoken there": "language do they speak",
    "is it capital city": "is it capital",
    "is language": "do they speak",
}
"""Other ways to say it, with articles left out."""


class GuessCity(Guessing):
    """guesses: how many the agent has; a wrong one costs a turn like a question. few: only the cities of the mini game.
    which: questions may ask for more than yes or no. fitting_only: `available_actions` offers no guess that the answers
    rule out.
    """

    thing = "city"

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        guesses: int = 3,
        few: bool = False,
        which: bool = True,
        fitting_only: bool = False,
    ) -> None:
        super().__init__(spec or EnvSpec.load(Path(__file__).with_name("spec.toml")), guesses, fitting_only)
        self.few, self.which = few, which

    @cached_property
    def table(self) -> AnswerTable:
        return atlas.table(self.few, self.which)

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        return atlas.shuffled(self.few)

    def question(self, text: str) -> str | None:
        for other, usual in SAME.items():
            text = text.replace(other, usual)
        normalized = plain(text)
        ends = [f" {alias}" for alias in atlas.ALIASES if normalized.endswith(f" {alias}")]
        if normalized not in self.table.answers and ends:
            end = max(ends, key=len)
            normalized = f"{normalized.removesuffix(end)} {atlas.ALIASES[end[1:]]}"
        return normalized if normalized in self.table.answers else None
