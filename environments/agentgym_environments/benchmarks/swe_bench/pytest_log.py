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
    """Return whether the outcomes are those expected, failures too: R2E-Gym's rule. Its names are those after the file,
    with dots ("TestA.test_b"); a file that cannot be collected has an empty one. Outcomes other than passed, failed and
    error do not count."""
    found = {_dotted(test): one for test, one in tests.items() if one in ("PASSED", "FAILED", "ERROR")}
    wanted = {COLOR.sub("", name).partition(" - ")[0]: one for name, one in expected.items()}
    return found.keys() == wanted.keys() and all(found[name] == one for name, one in wanted.items() if name)


def _dotted(test: str) -> str:
    return ".".join(test.split("::")[1:]).partition(" - ")[0]
