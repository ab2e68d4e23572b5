"""A task's game: made from a seed, compiled by Inform 7 once, and kept in a folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError
from agentgym_environments.base.engine_env import package
from agentgym_environments.base.text_env import split_of, task_random

COOKING = (
    {"recipe": 1, "take": 1, "go": 1, "open": False, "cook": False, "cut": False},
    {"recipe": 1, "take": 1, "go": 1, "open": True, "cook": True, "cut": False},
    {"recipe": 2, "take": 2, "go": 1, "open": True, "cook": True, "cut": True},
    {"recipe": 2, "take": 2, "go": 6, "open": True, "cook": True, "cut": True},
    {"recipe": 3, "take": 3, "go": 9, "open": True, "cook": True, "cut": True},
)
"""Levels 1 to 5: ingredients of the recipe, of them to be found, rooms, and what must be done."""

LEVELS = {"treasure_hunter": 30, "coin_collector": 300, "simple": 3, "cooking": len(COOKING)}
"""Challenge: its highest level; the lowest is 1."""


def require(challenge: str, level: int) -> None:
    """Raises ConfigError when there is no such challenge or level."""
    if challenge not in LEVELS:
        raise ConfigError(f"textworld has no challenge {challenge!r}; it has {', '.join(LEVELS)}")
    if isinstance(level, bool) or not isinstance(level, int) or not 1 <= level <= LEVELS[challenge]:
        raise ConfigError(f"textworld: {challenge} has the levels 1 to {LEVELS[challenge]}, not {level!r}")


def game_file(challenge: str, level: int, split: str, task: int, folder: Path) -> Path:
    """The compiled game of a task; made now when it is not in the folder yet (seconds)."""
    _hush()
    path = folder / f"{package('textworld', 'textworld').__version__}-{challenge}-{level}-{split}-{task}.z8"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        _compile(_make(challenge, level, split, task), path)
    return path


def _hush() -> None:
    """The engine warns of every game that is not one of fifty classics; TextWorld needs nothing of what is missing."""
    warnings.filterwarnings("ignore", message="Game '.*' is not fully supported")


@cache
def _remember_rules() -> None:
    """TextWorld parses its files of rules anew for every game that it makes, which is nine tenths of the time, and in
    the order that the file system gives them; from here on once, and by name."""
    logic = package("textworld.logic", "textworld").GameLogic
    load = cache(logic.load)
    logic.load = lambda paths: load(tuple(sorted(paths)))


def _make(challenge: str, level: int, split: str, task: int) -> tuple[Any, Any]:
    """(game, options) of the first seed of the task's own whose game belongs to the split."""
    _hush()
    _remember_rules()
    options_class = package("textworld", "textworld").GameOptions
    _, make, _ = package("textworld.challenges", "textworld").CHALLENGES[f"tw-{challenge}"]
    random = task_random("textworld", challenge, level, split, task)
    while True:
        options = options_class()
        options.seeds = random.randrange(2**31)
        game = make(_settings(challenge, level, split, options.seeds["map"]), options)  # pyright: ignore[reportIndexIssue]
        content = "\n".join([game.objective, *sorted(map(str, game.world.facts))])
        if split_of(content) == split:
            return game, options


def _settings(challenge: str, level: int, split: str, seed: int) -> dict[str, Any]:
    if challenge == "simple":
        return {"rewards": "dense", "goal": ("detailed", "brief", "none")[level - 1], "test": split == "test"}
    if challenge == "cooking":
        foods = {"validation": "valid"}.get(split, split)
        return {**COOKING[level - 1], "drop": False, "recipe_seed": seed % 2**31, "split": foods}
    return {"level": level}


def _compile(made: tuple[Any, Any], path: Path) -> None:
    """Make it in a folder of its own first: another process may be making the same game."""
    game, options = made
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="making-") as folder:
        options.path = str(Path(folder) / path.name)
        package("textworld.generator", "textworld").compile_game(game, options)
        for name in (path.with_suffix(".json").name, path.name):  # the game last: where it is, all is
            os.replace(Path(folder) / name, path.parent / name)


def digest(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
