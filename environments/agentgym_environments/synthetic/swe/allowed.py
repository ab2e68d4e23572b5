"""Rules for what a fix may not add: it runs in one process with the hidden tests, and one that rules that process is
no fix.

The rule speaks of what the fix adds to the task's files: a package may use all of it already.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

NAMES = frozenset({
    "eval", "exec", "compile", "open", "__import__", "globals", "locals", "vars", "getattr", "setattr", "delattr",
    "dir", "breakpoint", "input", "exit", "quit", "help", "sys", "os", "builtins", "modules", "inspect", "gc",
    "ctypes", "importlib", "traceback", "linecache", "subprocess", "signal", "threading", "atexit", "pickle",
    "marshal", "socket", "shutil", "pathlib", "pytest", "_pytest", "unittest", "doctest", "mock", "attrgetter",
    "methodcaller", "f_back", "f_globals", "f_locals", "f_builtins", "tb_frame", "gi_frame", "cr_frame",
    "SystemExit", "KeyboardInterrupt",
})  # fmt: skip
IMPORTS = frozenset({
    "abc", "bisect", "collections", "contextlib", "copy", "dataclasses", "datetime", "decimal", "enum",
    "fractions", "functools", "heapq", "itertools", "json", "math", "numbers", "operator", "re", "string",
    "textwrap", "time", "typing", "unicodedata", "warnings",
})  # fmt: skip
FINE = frozenset({"__init__", "__name__", "__class__", "__future__", "__all__"})
LARGEST = 1_000_000


def problem(path: str, before: bytes, after: bytes, package: str) -> str:
    """Return why `after` is refused as a fix of `before`; "" when it is not. What does not parse harms nobody."""
    if len(after) > LARGEST:
        return f"{path} is larger than {LARGEST} bytes"
    try:
        had, has = (Counter(_names(ast.parse(content), package)) for content in (before, after))
    except (SyntaxError, ValueError):
        return ""
    except (RecursionError, MemoryError):
        return f"{path} is nested too deeply"
    added = sorted((has - had).keys())
    return f"{path} adds {', '.join(added)}, which no fix here needs" if added else ""


def _names(tree: ast.AST, package: str) -> Iterator[str]:
    """Every use of a name that a fix may not add."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            relative = isinstance(node, ast.ImportFrom) and node.level > 0
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
            tops = {module.partition(".")[0] for module in modules}
            if not relative:
                yield from (f"import of {top}" for top in sorted(tops - IMPORTS - {package}))
            yield from (one.name for one in node.names if _refused(one.name))
        for name in (getattr(node, field, None) for field in ("id", "attr", "name")):
            if isinstance(name, str) and not isinstance(node, ast.alias) and _refused(name):
                yield name


def _refused(name: str) -> bool:
    return name in NAMES or (name.startswith("__") and name.endswith("__") and name not in FINE)
