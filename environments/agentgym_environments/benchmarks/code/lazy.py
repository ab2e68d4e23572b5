"""Lazy policies: they write functions that do nothing of what is asked for, and copy what the examples show."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping

import numpy as np

from agentgym.env import Action, LazyPolicy, Step

CONSTANTS = ("None", "0", "1", "True", "False", "''", "[]", "{}")


def _text(step: Step) -> str:
    return step.observation if isinstance(step.observation, str) else step.observation["text"]


def _name(text: str) -> str:
    found = re.findall(r"^def (\w+)\(", text, re.MULTILINE) or re.findall(r"assert \(?(\w+)\(", text)
    return found[-1] if found else "solve"


def _once(write: Callable[[str, np.random.Generator], str]) -> LazyPolicy:
    def play(step: Step, rng: np.random.Generator) -> Generator[Action, Step, None]:
        yield f"submit\n{write(_text(step), rng)}"

    return play


def _constant(text: str, rng: np.random.Generator) -> str:
    return f"def {_name(text)}(*args):\n    return {CONSTANTS[int(rng.integers(len(CONSTANTS)))]}"


def _first_argument(text: str, rng: np.random.Generator) -> str:
    return f"def {_name(text)}(first, *others):\n    return first"


def _echo(text: str, rng: np.random.Generator) -> str:
    return text


def _table(text: str, rng: np.random.Generator) -> str:
    """Look up the examples, and say the last result for all else."""
    shown = re.findall(r">>> (.+)\n\s*(.+)", text) or re.findall(r"assert (.+?) == (.+)", text)
    name, lines = _name(text), []
    for call, result in shown:
        found = re.fullmatch(rf"{name}\((.*)\)", call.strip())
        lines += [f"    if repr(args) == repr(({found[1]},)):\n        return {result}"] if found else []
    last = shown[-1][1] if shown else "None"
    return "\n".join((f"def {name}(*args):", *lines, f"    return {last}"))


def _equal_to_all(text: str, rng: np.random.Generator) -> str:
    return (
        "class Same(int):\n    __eq__ = lambda self, other: True\n    __ne__ = lambda self, other: False\n"
        f"    __hash__ = int.__hash__\n\n\ndef {_name(text)}(*args):\n    return Same()"
    )


POLICIES: Mapping[str, LazyPolicy] = {
    "a constant": _once(_constant),
    "the first argument": _once(_first_argument),
    "the prompt again": _once(_echo),
    "a table of the examples": _once(_table),
    "an object equal to all": _once(_equal_to_all),
}
