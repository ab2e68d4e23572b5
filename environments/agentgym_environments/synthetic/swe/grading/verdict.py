"""The verdict on a fix, out of what its tests reported and of what the package without the bug reports."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from agentgym_environments.synthetic.swe.grading.observations import Observations
from agentgym_environments.synthetic.swe.grading.reference import Reference
from agentgym_environments.synthetic.swe.grading.template import Template

PLANTED = 0.2
"""Share of the other variants that a grading draws; all variants of the tests that find the bug are run."""


@dataclass(frozen=True)
class PatchVerdict:
    """Result of the hidden tests. Names are as in `tasks.jsonl`, the parameters of a test left out."""

    matched: frozenset[str]
    """Tests of the package whose observations are those of the package without the bug."""
    differing: frozenset[str]
    planted: int
    """Planted variants that were run."""
    planted_differing: int

    @property
    def solved(self) -> bool:
        return bool(self.matched) and not self.differing and not self.planted_differing


def choose(template: Template, fail_to_pass: Collection[str], chance: random.Random) -> set[tuple[str, int]]:
    """Return the variants that one grading runs."""
    finders = {name.rpartition("::")[2] for name in map(plain_name, fail_to_pass)}
    variants = sorted(template.variants())
    return {one for one in variants if one[1] and (one[0] in finders or chance.random() < PLANTED)}


def decide(
    expected: Reference,
    found: Observations,
    chosen: set[tuple[str, int]],
    fail_to_pass: Collection[str],
    unstable: Collection[str],
    control: Callable[[], Observations],
    again: Callable[[], Observations],
) -> PatchVerdict:
    """Return the verdict on what was found. Where the tests that find the bug agree and others do not, what `control`,
    the same run on the package without the bug, gives otherwise than before does not count (dates), and what still
    differs has to in a second run of the fix, `again`, too (a timeout on a busy machine)."""
    ignored = frozenset(map(plain_name, unstable))
    verdict = compare(expected, found, chosen, ignored)
    if found and not verdict.solved and set(map(plain_name, fail_to_pass)) <= verdict.matched:
        expected = expected.unchanged(control())
        verdict = compare(expected, found, chosen, ignored)
        if not verdict.solved:
            verdict = compare(expected, again(), chosen, ignored)
    return verdict


def compare(
    expected: Reference, found: Observations, chosen: set[tuple[str, int]], unstable: frozenset[str]
) -> PatchVerdict:
    """The verdict on the observations of every test and of the variants that were chosen."""
    matched, differing, planted, planted_differing = set(), set(), 0, 0
    for test in expected.expected:
        identity, number = test
        name = junit_name(identity)
        if name in unstable or (number and (identity.rpartition("::")[2], number) not in chosen):
            continue
        different = expected.differences(found, test)
        if number:
            planted += 1
            planted_differing += different
        else:
            (differing if different else matched).add(name)
    return PatchVerdict(frozenset(matched), frozenset(differing), planted, planted_differing)


def junit_name(identity: str) -> str:
    """Name of "tests/test_a.py::TestB::test_c" in JUnit reports: `tests.test_a.TestB::test_c`."""
    path, *classes, name = identity.split("::")
    return ".".join([path.removesuffix(".py").replace("/", "."), *classes]) + f"::{name}"


def plain_name(test: str) -> str:
    """A test's name without its parameters."""
    return re.sub(r"\[.*", "", test, flags=re.DOTALL)
