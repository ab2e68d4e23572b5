"""The word lists, and which word is the answer of a task."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from agentgym.errors import ConfigError
from agentgym_environments.base.text_env import task_random


@lru_cache
def words(name: str) -> tuple[str, ...]:
    """The words of `NAME.txt`, sorted. Raises ConfigError where there is no such list."""
    lists = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.txt"))}
    if name not in lists:
        raise ConfigError(f"wordle: there is no list of words {name!r}; there are {', '.join(lists)}")
    return tuple(lists[name].read_text(encoding="utf-8").split())


@lru_cache
def guessable(answers: str, guesses: str) -> frozenset[str]:
    return frozenset(words(answers) + words(guesses))


@lru_cache
def shuffled(answers: str) -> tuple[str, ...]:
    """The order in which answers are dealt to the splits: each split is a slice."""
    return tuple(task_random("wordle", answers).sample(words(answers), len(words(answers))))
