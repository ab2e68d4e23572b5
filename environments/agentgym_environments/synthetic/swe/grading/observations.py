"""Observations of a run of hidden tests, as its log has them."""

from __future__ import annotations

import hashlib

from agentgym_environments.synthetic.swe.grading.template import Script

MOST_BYTES, MOST_LINES, MOST_LETTERS = 16 << 20, 300_000, 400
"""Bounds of a log, of its lines and of each of them; what is beyond is left out."""

Test = tuple[str, int]
"""("tests/test_a.py::TestB::test_c", variant); variant 0 is the test as the package has it."""
Observations = dict[Test, dict[int, list[str]]]
"""Test -> point -> its texts in order; point `END` has how the test ended, `OUTCOME - point` how a check came out."""
END, OUTCOME = -1, -2


def read_log(log: bytes, script: Script) -> Observations:
    """Observations that a log has of the script's tests; whatever else it holds is left out."""
    found: Observations = {}
    points: dict[int, list[str]] = {}
    for line in log[:MOST_BYTES].split(b"\n", MOST_LINES)[:MOST_LINES]:
        key, _, text = line[:MOST_LETTERS].decode("ascii", "replace").partition(" ")
        if key == ">":
            points = found.setdefault(script.identity(text), {})
        elif key == "<":
            points.setdefault(END, []).append(text)
        elif key in script.keys:
            points.setdefault(script.keys[key], []).append(text)
        elif key[-1:] == "=" and key[:-1] in script.keys:
            points.setdefault(OUTCOME - script.keys[key[:-1]], []).append(text)
    return found


def digest(texts: list[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:24]
