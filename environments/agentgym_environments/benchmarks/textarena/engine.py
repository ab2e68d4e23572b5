"""TextArena's code, kept from two habits: it downloads at import, and it draws from Python's one global generator."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

from agentgym_environments.base.engine_env import package

_one_at_a_time = threading.Lock()
"""The global generator is everybody's: it is swapped for a game's own while that game runs."""


@contextlib.contextmanager
def chance(state: list[Any]) -> Iterator[None]:
    """Python's global `random` is in state[0] within, and where it was before after; state[0] is what it came to."""
    with _one_at_a_time:
        outer = random.getstate()
        random.setstate(state[0])
        try:
            yield
        finally:
            state[0] = random.getstate()
            random.setstate(outer)


@contextlib.contextmanager
def no_downloads() -> Iterator[None]:
    """Word games fetch their lists with nltk when they are imported; here they do without, or fail."""
    nltk = package("nltk", "textarena")
    real, nltk.download = nltk.download, lambda *given, **named: False
    try:
        yield
    finally:
        nltk.download = real


def make(game: str) -> Any:
    """The game without TextArena's wrappers. Raises whatever the game's own code raises."""
    with no_downloads():
        made = package("textarena", "textarena").make(f"{game}-raw")
    if game.startswith("Crosswords"):  # it reads the letters of a reply from a set, whose order follows PYTHONHASHSEED
        package("textarena.envs.Crosswords.env", "textarena").set = dict.fromkeys
    return made
