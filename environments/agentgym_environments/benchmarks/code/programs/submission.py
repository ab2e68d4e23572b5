"""Answer calls with a submission's functions. Runs in the sandbox of the submission, and knows no test.

Each line of JSON that comes in is a call; each line that goes out is a value or an exception. Code of the agent shares
the process and may write what it likes: it is read as values and as nothing else.
"""

from __future__ import annotations

import ast
import builtins
import json
import sys
import types
import warnings
from typing import Any

from agentgym_environments.benchmarks.code.programs.values import decode, encode

MESSAGE = 500
"""Characters of an exception's message that are sent."""


def bound(tree: ast.Module) -> set[str]:
    """Names that a module binds at its top level."""
    names: set[str] = set()
    nodes: list[ast.AST] = [*tree.body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif not isinstance(node, ast.Lambda):
            nodes += ast.iter_child_nodes(node)
    return names


def parsed(source: str, name: str) -> Any:
    """Return the code of a reading that binds `name`; None for one that does not, or is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
            return compile(tree, "<submission>", "exec") if name in bound(tree) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return None


def regions(source: str) -> Any:
    """Parts of a text that may be a module amid prose: from a line of Python on, shorter and shorter."""
    lines = source.split("\n")
    starts = ("def ", "async def ", "class ", "import ", "from ", "@")
    for first in [number for number, line in enumerate(lines) if line.startswith(starts)][:20]:
        for last in range(len(lines), first, -1):
            if lines[last - 1].strip():
                yield "\n".join(lines[first:last])


def choose(readings: list[Any], name: str) -> tuple[str, Any]:
    """Return the code of the first reading that binds `name`, and what runs before it; None where there is none."""
    for before, source, prose in readings:
        for part in regions(source) if prose else [source]:
            if (found := parsed(part, name)) is not None:
                return before, found
    return "", None


def load(answer: dict[str, Any]) -> tuple[dict[str, Any], list[str] | None]:
    """Run the first reading that is Python and defines the function. Returns its names, and why it has none."""
    name = answer["entry_point"]
    before, found = choose(answer["readings"], name)
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    if found is None:
        return vars(module), ["SyntaxError", f"no Python with a function {name} was found in the answer"]
    exec(compile(before, "<prompt>", "exec"), vars(module))
    stub = vars(module).pop(name, None)
    try:
        exec(found, vars(module))
    except BaseException as error:  # noqa: BLE001  (its own tests may fail or exit; the function is there all the same)
        if vars(module).get(name, stub) is stub:
            return vars(module), raised(error)
    return vars(module), None


def raised(error: BaseException) -> list[str]:
    """Return the name of the nearest built-in class of an exception, and its message."""
    kind = next(kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind)
    try:
        message = str(error)[:MESSAGE]
    except Exception:  # noqa: BLE001
        message = ""
    return [kind, message.encode("ascii", "backslashreplace").decode()]


def serve(reading: Any, writing: Any, names: dict[str, Any], problem: list[str] | None, classes: list[str]) -> None:
    objects: list[Any] = []
    kinds = tuple(kind for kind in (names.get(one) for one in classes) if isinstance(kind, type))

    def number(value: Any) -> int | None:
        if not isinstance(value, kinds):
            return None
        place = next((place for place, one in enumerate(objects) if one is value), len(objects))
        if place == len(objects):
            objects.append(value)
        return place

    def do(request: dict[str, Any]) -> Any:
        args = decode(request["args"], objects.__getitem__)
        if request["do"] == "set":
            return setattr(objects[request["of"]], request["name"], *args)
        if request["do"] == "get":
            return getattr(objects[request["of"]], request["name"])
        if request["name"] not in names:
            raise NameError(f"name {request['name']!r} is not defined")
        return names[request["name"]](*args, **decode(request["options"], objects.__getitem__))

    for line in reading:
        try:
            reply = {"raise": problem} if problem else {"value": encode(do(json.loads(line)), number)}
        except BaseException as error:  # noqa: BLE001  (whatever a call raises is its result)
            reply = {"raise": raised(error)}
        writing.write(json.dumps(reply).encode() + b"\n")
        writing.flush()


def main() -> None:
    with open("/work/answer.json", encoding="utf-8") as file:
        answer = json.load(file)
    with open("/channel/calls", "rb") as reading, open("/channel/results", "wb") as writing:
        names, problem = load(answer)
        serve(reading, writing, names, problem, answer["classes"])


if __name__ == "__main__":
    sys.path.remove("/work")
    main()
