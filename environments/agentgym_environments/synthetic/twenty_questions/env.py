"""Twenty questions: which thing is it? Yes-or-no questions about common things."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from agentgym.spec import EnvSpec
from agentgym_environments.base.guessing_env import AnswerTable, Guessing
from agentgym_environments.synthetic.twenty_questions import knowledge


class TwentyQuestions(Guessing):
    """guesses: how many the agent has; each costs a turn. size: things and questions that there are. fitting_only:
    `available_actions` offers no guess that the answers rule out."""

    thing = "thing"

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        guesses: int = 3,
        size: knowledge.Size = "all",
        fitting_only: bool = False,
    ) -> None:
        super().__init__(spec or EnvSpec.load(Path(__file__).with_name("spec.toml")), guesses, fitting_only)
        self.size = size

    @cached_property
    def table(self) -> AnswerTable:
        return knowledge.table(self.size)

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        return knowledge.shuffled(self.size)

    def question(self, text: str) -> str | None:
        normalized = knowledge.phrases().get(text)
        return normalized if normalized in self.table.answers else None
