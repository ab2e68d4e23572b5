"""Twenty questions: which thing is it? Yes-or-no questions about common things."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from agentgym.spec import EnvSpec
from agentgym_environments.base.guessing_env import AnswerTable, Guessing
from agentgym_environments.synthetic.twenty_questions import knowledge


class TwentyQuestions(Guessing):
    """guesses: how many the agent has; each costs a turn. few: only the things of the mini game."""

    thing = "thing"

    def __init__(self, spec: EnvSpec | None = None, *, guesses: int = 3, few: bool = False) -> None:
        super().__init__(spec or EnvSpec.load(Path(__file__).with_name("spec.toml")), guesses)
        self.few = few

    @cached_property
    def table(self) -> AnswerTable:
        return knowledge.table(self.few)

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        return knowledge.shuffled(self.few)

    def question(self, text: str) -> str | None:
        normalized = knowledge.phrases().get(text)
        return normalized if normalized in self.table.answers else None
