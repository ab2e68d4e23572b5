"""Find out which of many by asking: what `twenty_questions` and `guess_city` share.

A secret name, questions whose answers follow from a table, and a few guesses. The solver asks what tells it most.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import Outcome, TurnEnv


class AnswerTable:
    """Names, questions, and the answer to each question for each name, in the order of `names`."""

    def __init__(
        self,
        names: Sequence[str],
        answers: dict[str, tuple[str, ...]],
        offered: Sequence[str] = (),
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """aliases: other names -> the name."""
        self.names, self.answers = tuple(names), answers
        self.offered = tuple(offered or answers)
        """The questions of `available_actions`, where all would be too many to send with every step."""
        self.column = {name: number for number, name in enumerate(self.names)}
        aliases = {plain(alias): name for alias, name in (aliases or {}).items() if name in self.column}
        self.named = {**aliases, **{plain(name): name for name in self.names}}
        """Name of what a guess may call it, made plain."""

    def answer(self, question: str, name: str) -> str:
        return self.answers[question][self.column[name]]

    @lru_cache(maxsize=20_000)  # noqa: B019 - tables are made once and kept
    def fitting(self, known: frozenset[tuple[str, str]]) -> tuple[str, ...]:
        """Names for which every (question, answer) of `known` is true."""
        return tuple(name for name in self.names if all(self.answer(question, name) == yes for question, yes in known))

    @lru_cache(maxsize=20_000)  # noqa: B019
    def best_question(self, fitting: tuple[str, ...]) -> str | None:
        """The question whose answer is most uncertain among `fitting`, the first of equals; None when none tells."""
        columns = [self.column[name] for name in fitting]
        best, most = None, 0.0
        for question, answers in self.answers.items():
            counts = Counter(answers[column] for column in columns)
            bits = -sum(n / len(columns) * math.log2(n / len(columns)) for n in counts.values())
            if bits > most + 1e-9:
                best, most = question, bits
        return best


GUESS = ("guess ", "is it ", "my guess is ", "i guess ", "")
"""Beginnings of a guess."""


class Guessing(TurnEnv):
    """The only reward is 1 for the right guess. Running out of guesses or turns is a loss (terminated).

    A subclass gives `table()`, `secrets()` and `question(text)`.
    """

    out_of_turns_terminates = True
    thing = "thing"
    """Word for what is guessed."""

    def __init__(self, spec: EnvSpec, guesses: int, fitting_only: bool = False) -> None:
        super().__init__(spec)
        self.fitting_only = fitting_only
        if guesses < 1:
            raise ConfigError(f"{spec.id}: guesses is 1 or more, not {guesses}")
        self.guesses = guesses
        self.secret = ""
        self.history: list[str] = []
        """Questions, as the table has them, in the order asked; each at most once."""
        self.wrong: list[str] = []
        """Names guessed."""
        self.answer_text = ""

    # What a game gives.

    @cached_property
    def table(self) -> AnswerTable:
        raise NotImplementedError

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        """The names in the order in which the splits share them."""
        raise NotImplementedError

    def question(self, text: str) -> str | None:
        """The question of the table that a text (lower case, without ? and articles) asks; None when it is none."""
        raise NotImplementedError

    # What it gets for that.

    def begin(self, split: str, task: int) -> None:
        sizes, names = self.env_spec.splits, list(self.env_spec.splits)
        self.secret = self.secrets[sum(sizes[name] for name in names[: names.index(split)]) + task]
        self.history, self.wrong, self.answer_text = [], [], "ask"

    def observe(self) -> str:
        if self.success:
            return "right"
        if self.over:
            return f"{self.answer_text}\nit was {self.secret}"
        turns, guesses = self.env_spec.max_turns - self.turn, self.guesses - len(self.wrong)
        return f"{self.answer_text}\n{turns} turn{'s' * (turns > 1)}, {guesses} guess{'es' * (guesses > 1)} left"

    def refuse(self, action: str) -> str:
        unused = (question for question in self.table.answers if question not in self.history)
        example = next(unused, f"guess {self.table.names[0]}")
        return f"not a question or guess that is understood; say for example: {example}\n{self.observe()}"

    def act(self, action: str) -> Outcome | None:
        text = plain(action)
        guess = next((name for start in GUESS if (name := self.table.named.get(_after(start, text)))), "")
        if guess:
            if guess == self.secret:
                return Outcome(1.0, ended=True, success=True)
            self.wrong = sorted({*self.wrong, guess})
            self.answer_text = f"not {guess}"
            # The same wrong guess twice is no second one, so that the state is what was guessed and not how often.
            return Outcome(ended=len(self.wrong) >= self.guesses)
        question = self.question(text)
        if question is None:
            return None
        if question not in self.history:
            self.history.append(question)
        self.answer_text = f"{question}: {self.table.answer(question, self.secret)}"
        return Outcome()

    def key(self) -> str:
        return f"{self.secret}; {', '.join(sorted(self.history))}; {' '.join(self.wrong)}"

    def left(self) -> tuple[str, ...]:
        """Names that may still be the secret, for whoever has heard the answers."""
        fitting = self.table.fitting(frozenset((one, self.table.answer(one, self.secret)) for one in self.history))
        return tuple(name for name in fitting if name not in self.wrong)

    def describe(self) -> dict[str, Any]:
        """`progress` is the share of the information that was needed and is had; `available_actions` are questions
        that were not asked (of those the table offers) and every guess, with `fitting_only` those that fit the answers.
        """
        if self.over or self.success:
            return {"progress": float(self.success), "available_actions": []}
        questions = [question for question in self.table.offered if question not in self.history]
        left = self.left()
        possible = left if self.fitting_only else [name for name in self.table.names if name not in self.wrong]
        guesses = [f"guess {name}" for name in possible]
        progress = 1 - math.log2(max(1, len(left))) / math.log2(len(self.table.names))
        return {"progress": progress, "available_actions": questions + guesses}

    def solver(self) -> str:
        self.require_episode("solver")
        left = self.left()
        question = self.table.best_question(left)
        if question is None or self.env_spec.max_turns - self.turn <= 1:
            return f"guess {left[0]}"
        return question

    def save(self) -> Any:
        return {"secret": self.secret, "asked": self.history, "wrong": self.wrong, "said": self.answer_text}

    def load(self, state: Any) -> None:
        self.secret, self.answer_text = state["secret"], state["said"]
        self.history, self.wrong = list(state["asked"]), list(state["wrong"])


def plain(text: str) -> str:
    """A question without punctuation, accents, articles and courtesies: "Is it an animal?" and "is it animal" are the
    same, and so are "ice-cream" and "**ice cream**", "São Paulo" and "sao paulo".
    """
    letters = unicodedata.normalize("NFKD", text.replace("-", " "))
    words = "".join(letter for letter in letters if letter.isalnum() or letter.isspace()).split()
    return " ".join(word for word in words if word not in ("a", "an", "the", "please"))


def _after(start: str, text: str) -> str:
    return text.removeprefix(start) if text.startswith(start) else ""
