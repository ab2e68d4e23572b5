"""The hidden tests as pytest judges them, for making tasks: nobody has touched the code that these runs are of."""

from __future__ import annotations

import secrets
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentgym_environments.backends.sandbox import Sandbox, SandboxLimits
from agentgym_environments.synthetic.swe import source as sources
from agentgym_environments.synthetic.swe.grading.paths import is_test_file
from agentgym_environments.synthetic.swe.source import PackageSource


@dataclass(frozen=True)
class TestOutcomes:
    """Tests that passed, and how each of the others failed, in pytest's words."""

    passed: frozenset[str]
    failed: dict[str, str]


def run_tests(
    package: PackageSource, files: Mapping[str, bytes], cache: Path, *, timeout_s: float = 60.0
) -> TestOutcomes:
    """Run every hidden test on `package` with `files` in place of its own. No result counts for nothing passed."""
    tests = sorted(path for path in package.hidden if is_test_file(path))
    report = f"/tmp/{secrets.token_hex(8)}.xml"
    options = "-q --tb=short -p no:cacheprovider -c /dev/null --rootdir=/work --import-mode=prepend"
    with Sandbox(
        {**package.visible, **files, **package.hidden},
        limits=SandboxLimits(memory_mb=2048, processes=256),  # pyright: ignore[reportCallIssue]
        readonly={str(sources.tools(cache)): "/opt/tools"},
        env={"PYTHONPATH": f"/opt/tools:/work/{package.root}"},
    ) as box:
        box.run(f"python -P -m pytest {options} --junitxml={report} {' '.join(tests)}", timeout_s)
        return read_report(box.read(report) or b"")


def read_report(report: bytes) -> TestOutcomes:
    """Pytest's JUnit report. Skipped tests are neither passed nor failed."""
    passed, failed = set(), {}
    try:
        cases = list(ElementTree.fromstring(report).iter("testcase"))
    except ElementTree.ParseError:
        cases = []
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        problem = next((child for child in case if child.tag in ("failure", "error")), None)
        if problem is not None:
            failed[name] = problem.text or problem.get("message") or ""
        elif all(child.tag != "skipped" for child in case):
            passed.add(name)
    return TestOutcomes(frozenset(passed - failed.keys()), failed)
