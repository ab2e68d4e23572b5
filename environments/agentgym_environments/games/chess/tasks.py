"""Tasks: an opening and a colour. `openings.txt` has one opening a line, made by `make_openings.py`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from agentgym.errors import ConfigError


@lru_cache
def openings() -> tuple[str, ...]:
    """Moves (UCI) of every opening, each a text."""
    return tuple((Path(__file__).parent / "openings.txt").read_text(encoding="utf-8").split("\n")[:-1])


def opening(sizes: dict[str, int], split: str, task: int) -> tuple[list[str], bool]:
    """(moves, whether the agent has white). Each opening is played from both sides, in one split."""
    names = list(sizes)
    first = sum((sizes[name] + 1) // 2 for name in names[: names.index(split)])
    number = first + task // 2
    if sum((size + 1) // 2 for size in sizes.values()) > len(openings()):
        raise ConfigError(f"chess has {len(openings())} openings, fewer than the tasks of the spec need")
    return openings()[number].split(), task % 2 == 0
