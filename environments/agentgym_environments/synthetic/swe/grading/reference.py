"""The expected observations of a package's tests: those of the package without the bug."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from agentgym_environments.synthetic.swe.grading.observations import END, Observations, Test, digest
from agentgym_environments.synthetic.swe.grading.template import Segment, Template


@dataclass(frozen=True)
class Reference:
    """Observations of the package without a bug. `expected`: test -> point -> digest, "" for a point that differs from
    run to run; `template` has no variant but those that have expected observations."""

    template: Template
    expected: dict[Test, dict[int, str]]

    def differences(self, found: Observations, test: Test) -> bool:
        """Return whether a test was observed otherwise than expected, or not at all."""
        expected = self.expected[test]
        if test not in found:
            return True
        given = {point: digest(texts) for point, texts in found[test].items()}
        return any(expected.get(point) != "" and expected.get(point) != given.get(point) for point in given | expected)

    def unchanged(self, found: Observations) -> Reference:
        """The reference without the points that a run of the package itself gives otherwise than before: they are of
        the date, or of the machine. A test that did not end in that run stays as it is."""
        expected = dict(self.expected)
        for test, points in found.items():
            if END in points and test in expected:
                now = {point: digest(texts) for point, texts in points.items()}
                known = expected[test]
                expected[test] = {p: known.get(p, "") if known.get(p) == now.get(p) else "" for p in known | now}
        return Reference(self.template, expected)


def as_json(made: Reference) -> dict[str, Any]:
    files = {path: [list(asdict(one).values()) for one in parts] for path, parts in made.template.files.items()}
    others = {path: content.hex() for path, content in made.template.others.items()}
    expected = [[*test, sorted(points.items())] for test, points in made.expected.items()]
    return {"files": files, "others": others, "names": made.template.names, "expected": expected}


def from_json(row: dict[str, Any]) -> Reference:
    files = {path: [Segment(*one) for one in parts] for path, parts in row["files"].items()}
    others = {path: bytes.fromhex(content) for path, content in row["others"].items()}
    expected = {(name, number): dict(map(tuple, points)) for name, number, points in row["expected"]}
    return Reference(Template(files, others, tuple(row["names"])), expected)
