"""Paths of a package's tests, and of the code that a fix may change."""

from __future__ import annotations

import re
from pathlib import PurePosixPath


def is_test(path: str) -> bool:
    parts = PurePosixPath(path).parts
    name = parts[-1]
    return (
        any(re.match(r"tests?(\.py)?$|test_", part) for part in parts[:-1])
        or name in ("conftest.py", "test.py", "tests.py")
        or (name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py")))
    )


def is_test_file(path: str) -> bool:
    """Return whether pytest is to collect the file."""
    return re.match(r"(test_.*|.*_test|tests?)\.py$", path.rpartition("/")[2]) is not None


def is_code(path: str, module: str) -> bool:
    """Return whether a fix may change the file. module: the package's folder with a slash, or its one file."""
    inside = path.startswith(module) if module.endswith("/") else path == module
    return inside and path.endswith(".py") and not is_test(path)
