"""Packages of this machine that a sandbox may see."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from agentgym.errors import MissingDependency

FOLDER = "/opt/packages"
"""Folder of the packages inside a sandbox: for PYTHONPATH."""


def installed(*names: str) -> dict[str, str]:
    """`Sandbox(readonly=...)` for these packages, with the libraries that wheels keep beside them.

    Raises MissingDependency naming the one that is not there. Docker's image must have this Python's minor version.
    """
    found = {}
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise MissingDependency(f"a sandbox is to show {name}: pip install {name}")
        folder = Path(spec.submodule_search_locations[0])
        for path in (folder, folder.with_name(f"{name}.libs")):
            if path.is_dir():
                found[str(path)] = f"{FOLDER}/{path.name}"
    return found
