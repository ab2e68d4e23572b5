"""Bugs: every way in which one token of a file can be wrong the way people get it wrong, each on one line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

OPERATORS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is not": "is", "is": "is not",
    "not in": "in", "in": "not in", "+": "-", "-": "+", "*": "+", "//": "/", "%": "//", "and": "or", "or": "and",
}  # fmt: skip
NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "lstrip": "rstrip", "rstrip": "lstrip", "find": "rfind",
    "rfind": "find", "upper": "lower", "lower": "upper", "startswith": "endswith", "endswith": "startswith",
    "split": "rsplit", "append": "extend", "keys": "values", "items": "keys", "update": "setdefault",
    "appendleft": "append", "popleft": "pop", "partition": "rpartition", "rpartition": "partition",
}  # fmt: skip

PLANS = {
    "operator": "an operator is the wrong one: think of which values meet it, at its edges too",
    "name": "a function is called that does nearly what is wanted, but not that",
    "constant": "a number or truth value is not what it should be",
    "condition": "a condition is the wrong way round",
    "arguments": "two arguments of a call have changed places",
    "statement": "a step is missing: something that was to be done here is not",
}
"""Last hint by kind of bug."""


@dataclass(frozen=True)
class Mutation:
    """One line that was broken."""

    path: str
    line: int
    """Counted from 1."""
    function: str
    """The function it is in, with its classes: "Cache.pop"."""
    kind: str
    fixed: str
    broken: str


def apply(content: bytes, edits: list[Mutation], *, fix: bool = False) -> bytes:
    """The file with each of the edits made, or taken back. Raises ValueError where it has another line there."""
    lines = content.decode().split("\n")
    for edit in edits:
        before, after = (edit.broken, edit.fixed) if fix else (edit.fixed, edit.broken)
        if lines[edit.line - 1] != before:
            raise ValueError(f"line {edit.line} of {edit.path} is {lines[edit.line - 1]!r}, not {before!r}")
        lines[edit.line - 1] = after
    return "\n".join(lines).encode()


def mutations(path: str, content: bytes) -> Iterator[Mutation]:
    """Every bug of a file, function by function; not all of them leave it valid Python."""
    lines = content.decode("latin-1").split("\n")  # a character a byte, as the positions of syntax trees count
    for function, node in _functions(ast.parse(content), ""):
        for kind, line, start, end, new in _places(node, lines):
            old = lines[line - 1]
            broken = old[:start] + new + old[end:]
            if broken != old:
                yield Mutation(path, line, function, kind, *(text.encode("latin-1").decode() for text in (old, broken)))


def _functions(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    """Every function with its name, those inside another left to that one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{name}{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{name}{child.name}.")


def _places(function: ast.AST, lines: list[str]) -> Iterator[tuple[str, int, int, int, str]]:
    """(kind, line, first column, end column, what stands there instead) of every bug in a function."""
    loops = {id(inner) for node in ast.walk(function) if isinstance(node, ast.While) for inner in ast.walk(node.test)}
    for node in ast.walk(function):
        if id(node) in loops:  # such a bug runs for ever
            continue
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from _between("operator", node.left, node.comparators[0], lines)
        elif isinstance(node, ast.BinOp) and not isinstance(node.left, ast.Constant):
            yield from _between("operator", node.left, node.right, lines)
        elif isinstance(node, ast.BoolOp):
            yield from _between("operator", node.values[0], node.values[1], lines)
        elif isinstance(node, ast.Constant) and node.lineno == node.end_lineno:
            if isinstance(node.value, bool):
                yield _replace_node("constant", node, str(not node.value))
            elif (
                isinstance(node.value, int) and lines[node.lineno - 1][node.col_offset : node.end_col_offset].isdigit()
            ):
                yield _replace_node("constant", node, str(node.value + 1))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            if node.lineno == node.operand.lineno:
                yield "condition", node.lineno, node.col_offset, node.operand.col_offset, ""
        elif isinstance(node, ast.If) and isinstance(node.test, (ast.Name, ast.Call, ast.Attribute)):
            yield "condition", node.test.lineno, node.test.col_offset, node.test.col_offset, "not "
        elif isinstance(node, ast.Call):
            yield from _call(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.lineno == node.end_lineno:
            yield _replace_node("statement", node, "pass")


def _between(kind: str, left: ast.expr, right: ast.expr, lines: list[str]) -> Iterator[tuple[str, int, int, int, str]]:
    if left.end_lineno != right.lineno or left.end_lineno is None or left.end_col_offset is None:
        return
    start, end = left.end_col_offset, right.col_offset
    found = re.fullmatch(r"([\s)]*)(.*?)([\s(]*)", lines[right.lineno - 1][start:end])
    if found and found[2] in OPERATORS:
        yield kind, right.lineno, start + found.end(1), start + found.end(2), OPERATORS[found[2]]


def _call(node: ast.Call) -> Iterator[tuple[str, int, int, int, str]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in NAMES and node.func.end_lineno is not None and node.func.end_col_offset is not None:
        end = node.func.end_col_offset
        yield "name", node.func.end_lineno, end - len(name), end, NAMES[name]
    if len(node.args) == 2 and all(isinstance(one, ast.Name) for one in node.args):
        first, second = node.args
        if first.lineno == second.end_lineno and second.end_col_offset is not None:
            swapped = f"{ast.unparse(second)}, {ast.unparse(first)}"
            yield "arguments", first.lineno, first.col_offset, second.end_col_offset, swapped


def _replace_node(kind: str, node: ast.expr | ast.stmt, new: str) -> tuple[str, int, int, int, str]:
    return kind, node.lineno, node.col_offset, node.end_col_offset or node.col_offset, new
