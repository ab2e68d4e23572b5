"""`make lowest`: the constraints that pin every dependency to its lower bound."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("lowest", ROOT / "tests" / "lowest.py")
assert _spec is not None
assert _spec.loader is not None
lowest = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(lowest)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ELSEWHERE = {("gymnasium", Version("1.2"))}
"""Lower bounds that another environment of the Makefile installs: nle pins Gymnasium 1.2.0."""


def test_every_lower_bound_is_pinned():
    pinned = {tuple(line.split("==")) for line in lowest.constraints(PROJECT)}
    versions = {(name, Version(version)) for name, version in pinned}
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for requirement in (Requirement(line) for group in groups for line in group):
        bounds = {Version(one.version) for one in requirement.specifier if one.operator == ">="}
        name = canonicalize_name(requirement.name)
        assert name == PROJECT["name"] or bounds, f"{requirement} has no lower bound"
        assert {(name, bound) for bound in bounds} <= versions | ELSEWHERE


def test_the_highest_of_two_lower_bounds_is_pinned():
    project = {"name": "x", "dependencies": ["A_b>=1.9"], "optional-dependencies": {"c": ["a-b[d]>=1.10,<2", "x[e]"]}}
    assert lowest.constraints(project) == ["a-b==1.10"]


def test_a_dependency_without_lower_bound_is_refused():
    with pytest.raises(ValueError, match="a<2 has no lower bound, so none can be tested: write a>=VERSION"):
        lowest.constraints({"name": "x", "dependencies": ["a<2"], "optional-dependencies": {}})
