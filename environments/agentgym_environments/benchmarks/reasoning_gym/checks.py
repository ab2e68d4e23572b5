"""Checks of an answer before a verifier of reasoning-gym reads it: some run it as Python, some take one for all."""

from __future__ import annotations

import ast
import math
from fractions import Fraction
from typing import Any

from agentgym_environments.base.engine_env import package

EVALUATED = {
    "binary_matrix": "reasoning_gym.algorithmic.binary_matrix",
    "n_queens": "reasoning_gym.games.n_queens",
    "spiral_matrix": "reasoning_gym.algorithmic.spiral_matrix",
    "string_insertion": "reasoning_gym.algorithmic.string_insertion",
}
"""Data sets whose verifiers give an answer to `eval`, and their modules."""

ELEMENTARY = frozenset(
    {
        *("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh"),
        *("atanh", "exp", "log", "ln", "sqrt", "Abs", "abs", "sign", "erf", "pi"),
    }
)
FORMULAS = {
    "countdown": frozenset[str](),
    "intermediate_integration": ELEMENTARY,
    "polynomial_multiplication": frozenset[str](),
    "simple_integration": ELEMENTARY,
}
"""Data sets whose verifiers give an answer to sympy's parser, which runs Python too, and the names that it may use."""

LARGEST_POWER, MOST_NESTED = 100, 2
"""Bounds of an exponent, and of powers of powers: a larger number keeps the process busy for ever."""
NEAR = 1e-4
"""Difference from a probability that the verifier of coin_flip allows."""


def only_literals(dataset: str) -> None:
    """Let a verifier that evaluates answers read lists and numbers, and run nothing."""
    if dataset in EVALUATED:
        package(EVALUATED[dataset], "reasoning-gym").eval = ast.literal_eval


def is_readable(dataset: str, answer: str) -> bool:
    """Return whether a verifier may be given an answer."""
    if dataset == "complex_arithmetic":  # its distance from any number is nan, which counts as none
        return "nan" not in answer.lower()
    if dataset not in FORMULAS:
        return True
    try:
        depth = _powers(ast.parse(answer.strip(), mode="eval").body, dataset, FORMULAS[dataset])
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return depth <= MOST_NESTED


def is_full(dataset: str, answer: str, right: str) -> bool:
    """Return whether an answer with a full score is right.

    coin_flip's verifier takes "0" for every "0.3125", spell_backward's an answer with anything after it.
    """
    if dataset == "spell_backward":
        return answer.strip().lower() == right.strip().lower()
    if dataset != "coin_flip":
        return True
    one, other = (float(Fraction(text.strip().replace(",", ""))) for text in (answer, right))
    return math.isclose(one, other, rel_tol=0, abs_tol=NEAR)


def _powers(node: ast.expr, dataset: str, functions: frozenset[str]) -> int:
    """Return how many powers are within one another. Raises ValueError for what is no formula."""

    def inside(*nodes: ast.expr) -> int:
        return max(_powers(one, dataset, functions) for one in nodes)

    countdown = dataset == "countdown"  # whole numbers and the four operations alone
    match node:
        case ast.Constant(value=bool()):
            raise ValueError("a truth value")
        case ast.Constant(value=value) if isinstance(value, int if countdown else int | float):
            return 0
        case ast.Name(id=name) if not countdown and (len(name) == 1 or name in functions):
            return 0
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return inside(operand)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right=right):
            return inside(left, right)
        case ast.BinOp(left=left, op=ast.Pow(), right=right) if not countdown:
            if not (isinstance(left, ast.Name) or _is_small(right)):
                raise ValueError("a power that may be a very large number")
            return 1 + inside(left, right)
        case ast.Call(func=ast.Name(id=name), args=[*arguments], keywords=[]) if name in functions and arguments:
            return inside(*arguments)
    raise ValueError("no formula")


def _is_small(node: Any) -> bool:
    """Return whether an exponent is a number, or a quotient of two, that is small."""
    match node:
        case ast.UnaryOp(operand=operand):
            return _is_small(operand)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _is_small(left) and _is_small(right)
        case ast.Constant(value=int() | float() as value):
            return abs(value) <= LARGEST_POWER
    return False
