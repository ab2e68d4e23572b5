"""Variants of a test: its code with a few literals changed or a step left out; its checks come out either way."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator

SHARE = 0.35
"""Share of a test's literals that a variant changes; one at least."""
LARGEST = 1_000_000
"""Whole numbers above stay: they are sizes, times and limits."""


def variant(test: ast.FunctionDef, chance: random.Random) -> ast.FunctionDef | None:
    """A copy with changed literals; one with a step less or twice where there are none; None where neither can be."""
    made = copy.deepcopy(test)
    places = list(literals(made))
    if not places:
        return _other_steps(made, chance)
    chosen = [place for place in places if chance.random() < SHARE] or [chance.choice(places)]
    for place in chosen:
        place.value = changed(place.value, chance)
    return made


def _other_steps(made: ast.FunctionDef, chance: random.Random) -> ast.FunctionDef | None:
    """Leave out, or repeat, one of the calls that are statements."""
    steps = [i for i, node in enumerate(made.body) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    if not steps or len(made.body) < 2:
        return None
    at = chance.choice(steps)
    made.body[at : at + 1] = [made.body[at], copy.deepcopy(made.body[at])] if chance.random() < 0.5 else []
    return made


def literals(test: ast.FunctionDef) -> Iterator[ast.Constant]:
    """Numbers and strings of the body and of the values of `parametrize`."""
    first = test.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    for statement in test.body[documented:]:
        yield from _inside(statement)
    for decorator in test.decorator_list:
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "attr", "") == "parametrize":
            for values in decorator.args[1:]:
                yield from _inside(values)


def _inside(node: ast.AST) -> Iterator[ast.Constant]:
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.Constant) and _changeable(node.value):
        yield node
    for field, child in ast.iter_fields(node):
        for inner in child if isinstance(child, list) else [child]:
            about_text = field == "keywords" and getattr(inner, "arg", "") in ("match", "id")
            if isinstance(inner, ast.AST) and not about_text:
                yield from _inside(inner)


def _changeable(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, (str, bytes, float)) or (isinstance(value, int) and abs(value) <= LARGEST)


def changed(value: object, chance: random.Random) -> str | bytes | int | float:
    """A value of the same kind that is near, and another."""
    if isinstance(value, int):
        return chance.choice([value + 1, value + 2, value - 1 if value > 1 else value + 3])
    if isinstance(value, float):
        return chance.choice([value + 1.0, value * 2 + 0.5])
    if isinstance(value, bytes):
        return changed(value.decode("latin-1"), chance).encode("latin-1", "replace")  # pyright: ignore
    assert isinstance(value, str)
    if not value:
        return chance.choice(["a", " ", "0"])
    at = chance.randrange(len(value))
    letter = value[at]
    near = chr(ord(letter) + 1) if letter.isalnum() and letter.isascii() and letter not in "zZ9" else letter * 2
    return value[:at] + chance.choice([near, letter * 2, near + letter]) + value[at + 1 :]
