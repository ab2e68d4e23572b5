"""Facts about things. `things.txt` and `questions.txt` are our own; README.md says how they are read."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

from agentgym_environments.base.guessing_env import AnswerTable, plain
from agentgym_environments.base.text_env import task_random

HERE = Path(__file__).parent
Size = Literal["all", "mini", "tiny"]
TINY = {
    "questions": ("animal", "fly", "big", "metal", "kitchen", "outdoors"),
    "things": (
        "aeroplane", "ant", "apple", "bicycle", "car", "cow", "dog", "eagle", "hat", "key", "spoon", "tree",
    ),
}  # fmt: skip
"""The tiny game: every two of its things differ in one of its questions."""


ALIASES = {
    "airplane": "aeroplane", "plane": "aeroplane", "bath": "bathtub", "bike": "bicycle", "cookie": "biscuit",
    "cell phone": "telephone", "couch": "sofa", "die": "dice", "eyeglasses": "spectacles", "flashlight": "torch",
    "fridge freezer": "fridge", "glasses": "spectacles", "grapes": "grape", "ladybug": "ladybird",
    "motorbike": "motorcycle", "mobile phone": "telephone", "pants": "trousers", "phone": "telephone",
    "refrigerator": "fridge", "rhino": "rhinoceros", "shovel": "spade", "sled": "sledge",
    "television set": "television", "tv": "television", "watch": "wristwatch", "washer": "washing-machine", "ax": "axe",
}  # fmt: skip
"""Other names of things -> the name."""


@lru_cache
def questions() -> dict[str, tuple[str, ...]]:
    """Attribute -> its question and other ways to ask it."""
    rows = [[part.strip() for part in line.split("|")] for line in _lines("questions.txt")]
    return {attribute: tuple(phrases_of) for attribute, *phrases_of in rows}


@lru_cache
def things(size: Size) -> dict[str, frozenset[str]]:
    """Thing -> attributes that it has. "mini": only those that are marked with a star."""
    found = {}
    for line in _lines("things.txt"):
        name, _, attributes = line.partition(":")
        if name.startswith("*") or size == "all":
            found[name.lstrip("*").strip('"')] = frozenset(attributes.split())
    return {name: found[name] for name in TINY["things"]} if size == "tiny" else found


@lru_cache
def table(size: Size) -> AnswerTable:
    """Answers yes or no; questions with one answer for all are answered and not offered."""
    known = things(size)
    answers = {
        wordings[0]: tuple("yes" if attribute in has else "no" for has in known.values())
        for attribute, wordings in questions().items()
        if size != "tiny" or attribute in TINY["questions"]
    }
    offered = [question for question, row in answers.items() if len(set(row)) == 2]
    return AnswerTable(tuple(known), answers, offered, ALIASES)


@lru_cache
def phrases() -> dict[str, str]:
    """Every way to ask, made plain -> the question."""
    return {plain(way): wordings[0] for wordings in questions().values() for way in wordings}


@lru_cache
def shuffled(size: Size) -> tuple[str, ...]:
    """The things in the order in which splits share them."""
    names = sorted(things(size))
    salt = "tiny" if size == "tiny" else size == "mini"
    return tuple(task_random("twenty-questions", salt).sample(names, len(names)))


def _lines(name: str) -> list[str]:
    return [line for line in (HERE / name).read_text(encoding="utf-8").splitlines() if line.strip()]
