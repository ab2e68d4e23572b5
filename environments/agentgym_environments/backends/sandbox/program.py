"""The program that a sandbox starts: the modules of `supervisor/`, as arguments of a Python that has no other files."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).with_name("supervisor")
MODULES = ("tree", "archive", "memory", "shell", "main")
"""Modules in the order in which they import each other."""

LOADER = """
import json, sys, types
package, sources = json.loads(sys.argv[1])
sys.modules[package] = types.ModuleType(package)
for name, source in sources.items():
    module = sys.modules[f"{package}.{name}"] = types.ModuleType(f"{package}.{name}")
    setattr(sys.modules[package], name, module)
    exec(compile(source, name, "exec"), module.__dict__)
module.main()
"""


def arguments() -> list[str]:
    """Return Python's arguments."""
    sources = {name: (FOLDER / f"{name}.py").read_text(encoding="utf-8") for name in MODULES}
    return ["-I", "-S", "-c", LOADER, json.dumps([f"{__package__}.{FOLDER.name}", sources])]
