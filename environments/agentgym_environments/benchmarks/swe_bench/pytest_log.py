"""Grader of records without a report of their own: outcomes of tests, read from what `pytest -rA` prints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

SUMMARY = "short test summary info"
COLOR = re.compile(r"\x1b\[[0-9;]*m|\r")
LINE = re.compile(r"(PASSED|FAILED|ERROR|XFAIL|XPASS) (.+)")


def outcomes(log: str) -> dict[str, str]:
    """Return test -> outcome of the last summary of a log; nothing where there is none."""
    _, found, summary = COLOR.sub("", log).rpartition(SUMMARY)
    tests: dict[str, str] = {}
    for line in summary.splitlines() if found else ():
        if match := LINE.match(line):
            tests[match[2] if match[1] == "PASSED" else match[2].partition(" - ")[0]] = match[1]
    return tests


def resolved(tests: Mapping[str, str], wanted: Iterable[str]) -> bool:
    """Return whether every wanted test passed. One that is missing did not."""
    return all(tests.get(test) in ("PASSED", "XFAIL") for test in wanted)


def as_expected(tests: Mapping[str, str], expected: Mapping[str, str]) -> bool:
    """Return whether the outcomes are those expected, failures too: R2E-Gym's rule. Tests are compared by the name of
    their file and their own; outcomes other than passed, failed and error do not count."""
    found = {_short(test): one for test, one in tests.items() if one in ("PASSED", "FAILED", "ERROR")}
    return found == {COLOR.sub("", name).partition(" - ")[0]: one for name, one in expected.items() if name}


def _short(test: str) -> str:
    parts = test.split("::")
    return f"{parts[0].rpartition('/')[2]}::{parts[-1]}"
