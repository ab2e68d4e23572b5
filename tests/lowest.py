"""Print the pip constraints that pin every dependency in pyproject.toml to its lower bound, for `make lowest`."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def requirements(project: dict[str, Any]) -> list[Requirement]:
    """Dependencies and extras of a `[project]` table, without the project's references to its own extras."""
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    parsed = [Requirement(line) for group in groups for line in group]
    return [one for one in parsed if one.name != project["name"]]


def lower_bounds(project: dict[str, Any]) -> dict[str, list[Version]]:
    """Normalized name -> the lower bounds of a dependency. Raises ValueError where there is none."""
    bounds: dict[str, list[Version]] = defaultdict(list)
    for requirement in requirements(project):
        name = canonicalize_name(requirement.name)
        lower = [Version(one.version) for one in requirement.specifier if one.operator == ">="]
        if not lower:
            raise ValueError(f"{requirement} has no lower bound, so none can be tested: write {name}>=VERSION")
        bounds[name] += lower
    return bounds


def constraints(project: dict[str, Any]) -> list[str]:
    """Return one `name==version` per dependency, with the highest of its lower bounds."""
    return [f"{name}=={max(versions)}" for name, versions in sorted(lower_bounds(project).items())]


if __name__ == "__main__":
    print("\n".join(constraints(tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"])))
