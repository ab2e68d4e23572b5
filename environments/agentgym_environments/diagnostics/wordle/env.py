"""Wordle: find a hidden word in a few guesses from marks on the letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import Outcome, TurnEnv
from agentgym_environments.diagnostics.wordle.feedback import feedback
from agentgym_environments.diagnostics.wordle.solver import best_guess
from agentgym_environments.diagnostics.wordle.tasks import guessable, shuffled


class Wordle(TurnEnv):
    """Running out of guesses is a loss (terminated): the number of guesses is a rule of the game.

    answers, guesses: names of word lists in this folder; any word of either may be guessed.
    """

    out_of_turns_terminates = True

    def __init__(self, spec: EnvSpec | None = None, *, answers: str = "answers5", guesses: str = "guesses5") -> None:
        super().__init__(spec or EnvSpec.load(Path(__file__).with_name("spec.toml")))
        self.answers, self.allowed = answers, guessable(answers, guesses)
        if sum(self.env_spec.splits.values()) > len(shuffled(answers)):
            raise ConfigError(f"{self.env_spec.id}: more tasks than the {len(shuffled(answers))} words of {answers}")
        self.answer = ""
        self.guesses: list[str] = []

    def begin(self, split: str, task: int) -> None:
        sizes, names = self.env_spec.splits, list(self.env_spec.splits)
        offset = sum(sizes[name] for name in names[: names.index(split)])
        self.answer = shuffled(self.answers)[offset + task]
        self.guesses = []

    def observe(self) -> str:
        lines = [f"{guess} {marks}" for guess, marks in self.history()]
        if self.success:
            lines.append("solved")
        elif self.over:
            lines.append(f"the word was {self.answer}")
        else:
            left = self.env_spec.max_turns - self.turn
            lines.append(f"a word of {len(self.answer)} letters, {left} guess{'es' * (left > 1)} left")
        return "\n".join(lines)

    def refuse(self, action: str) -> str:
        return f"not in the list of words of {len(self.answer)} letters\n{self.observe()}"

    def act(self, action: str) -> Outcome | None:
        if action not in self.allowed:
            return None
        self.guesses.append(action)
        solved = action == self.answer
        return Outcome(float(solved), ended=solved, success=solved)

    def history(self) -> tuple[tuple[str, str], ...]:
        """(guess, marks) of every guess so far."""
        return tuple((guess, feedback(guess, self.answer)) for guess in self.guesses)

    def key(self) -> str:
        return " ".join([self.answer, *self.guesses])

    def describe(self) -> dict[str, Any]:
        """`progress` is the greatest share of letters that one guess has put in their place."""
        return {"progress": max((marks.count("G") for _, marks in self.history()), default=0) / len(self.answer)}

    def solver(self) -> str:
        self.require_episode("solver")
        return best_guess(self.answers, self.history(), self.env_spec.max_turns - self.turn)

    def save(self) -> Any:
        return {"answer": self.answer, "guesses": self.guesses}

    def load(self, state: Any) -> None:
        self.answer, self.guesses = state["answer"], list(state["guesses"])
