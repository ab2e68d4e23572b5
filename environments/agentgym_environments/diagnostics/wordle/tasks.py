"""The word lists, and which word is the answer of a task."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from agentgym_environments.base.text_env import task_random


@lru_cache
def words(name: str) -> tuple[str, ...]:
    """The words of `NAME.txt`, sorted."""
    return tuple(Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8").split())


@lru_cache
def guessable(answers: str, guesses: str) -> frozenset[str]:
    return frozenset(words(answers) + words(guesses))


@lru_cache
def shuffled(answers: str) -> tuple[str, ...]:
    """The order in which answers are dealt to the splits: each split is a slice."""
    return tuple(task_random("wordle", answers).sample(words(answers), len(words(answers))))
