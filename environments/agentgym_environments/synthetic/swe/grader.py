"""The hidden tests: run on a fix in a sandbox of their own, which no agent has touched."""

from __future__ import annotations

import re
import secrets
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentgym_environments.backends.sandbox import Sandbox, SandboxLimits
from agentgym_environments.synthetic.swe import source
from agentgym_environments.synthetic.swe.source import PackageSource

CANARY = """
import unittest

import pytest


def test_{0}_order():
    assert [1, 2, 3] == [3, 2, 1]


@pytest.mark.parametrize("value", [None, 0])
def test_{0}_value(value):
    assert value


def test_{0}_error():
    with pytest.raises(KeyError):
        dict(a=1)["a"]


class Test{0}(unittest.TestCase):
    def test_{0}_equal(self):
        self.assertEqual("{0}", "")
"""
"""Tests that must fail. Where they pass, the fix has got at whatever runs the tests."""
CANARIES = 5


@dataclass(frozen=True)
class PatchVerdict:
    """Result of the hidden tests."""

    passed: frozenset[str]
    failed: dict[str, str]
    """Test -> how it failed, in pytest's words."""
    honest: bool
    """True when the tests that must fail did."""

    def solved(self, fail_to_pass: frozenset[str], passing: int, unstable: frozenset[str]) -> bool:
        """Return whether the tests that failed pass, no other fails, and none has gone missing.

        passing: how many pass when all is well, fail_to_pass among them. unstable: tests that do not count.
        """
        counted = self.passed - unstable
        return self.honest and fail_to_pass <= counted and not self.failed.keys() - unstable and len(counted) >= passing


def judge(
    package: PackageSource,
    files: Mapping[str, bytes | None],
    cache: Path,
    *,
    backend: str = "auto",
    timeout_s: float = 60.0,
) -> PatchVerdict:
    """Run every hidden test on `package` with `files` in place of its own; a file that is None is left out.

    No result counts for nothing passed.
    """
    word = secrets.token_hex(4)
    tests = sorted(path for path in package.hidden if path.endswith(".py") and not path.endswith("__init__.py"))
    beside = next(path for path in tests if path.rpartition("/")[2] not in ("conftest.py",)).rpartition("/")[0]
    canary = f"{beside}/test_{word}.py".lstrip("/")
    fixed = {path: content for path, content in {**package.visible, **files}.items() if content is not None}
    everything = {**fixed, **package.hidden, canary: CANARY.format(word).encode()}
    report = f"/tmp/{secrets.token_hex(8)}.xml"
    options = "-q --tb=short -p no:cacheprovider -c /dev/null --rootdir=/work --import-mode=prepend"
    folders = sorted(
        {path for path in [*tests, canary] if re.match(r"(test_.*|.*_test|tests?)\.py$", path.rpartition("/")[2])}
    )
    with Sandbox(
        everything,
        limits=SandboxLimits(memory_mb=2048, processes=256),  # pyright: ignore[reportCallIssue]
        readonly={str(source.tools(cache)): "/opt/tools"},
        env={"PYTHONPATH": f"/opt/tools:/work/{package.root}"},
        backend=backend,
    ) as box:
        box.run(f"python -P -m pytest {options} --junitxml={report} {' '.join(folders)}", timeout_s)
        return read_report(box.read(report) or b"", word)


def read_report(report: bytes, word: str) -> PatchVerdict:
    """Pytest's JUnit report. Skipped tests are neither passed nor failed."""
    passed, failed, canaries = set(), {}, 0
    try:
        cases = list(ElementTree.fromstring(report).iter("testcase"))
    except ElementTree.ParseError:
        cases = []
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        problem = next((child for child in case if child.tag in ("failure", "error")), None)
        if word in name:
            canaries += problem is not None
        elif problem is not None:
            failed[name] = problem.text or problem.get("message") or ""
        elif all(child.tag != "skipped" for child in case):
            passed.add(name)
    return PatchVerdict(frozenset(passed - failed.keys()), failed, canaries == CANARIES)
