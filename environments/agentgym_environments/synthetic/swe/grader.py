"""The verdict on a fix: what its tests compute is compared, here, with what the package without the bug computes.

The tested process reports values and knows neither what is expected nor which of the tests are planted: copies of tests
with other literals, whose checks come out either way. `grading/` has how the tests are rewritten and run.
"""

from __future__ import annotations

import random
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentgym_environments.backends.sandbox import backends
from agentgym_environments.base.grading import run_submission
from agentgym_environments.synthetic.swe.grading.reference import Reference, reference
from agentgym_environments.synthetic.swe.grading.run import Observations, observe
from agentgym_environments.synthetic.swe.source import PackageSource

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


def judge(
    package: PackageSource,
    files: Mapping[str, bytes | None],
    cache: Path,
    *,
    fail_to_pass: frozenset[str] = frozenset(),
    unstable: frozenset[str] = frozenset(),
    backend: str = "auto",
    timeout_s: float = 60.0,
) -> PatchVerdict:
    """Observe every hidden test on `package` with `files` in place of its own; a file that is None is left out.

    unstable: tests that do not count. Raises SandboxLost where the machine cannot run the package without a bug either.
    """
    backend = backends.choose(backend)
    expected = reference(package, cache, backend)
    finders = {name.rpartition("::")[2] for name in map(plain_name, fail_to_pass)}
    chance = random.Random(secrets.randbits(128))
    variants = sorted(expected.template.variants())
    chosen = {one for one in variants if one[1] and (one[0] in finders or chance.random() < PLANTED)}
    seed = chance.getrandbits(128)  # one order for both runs: some tests leave behind what changes a later one

    def run(fix: Mapping[str, bytes | None]) -> Observations:
        return observe(package, fix, expected.template, chosen, cache, backend=backend, timeout_s=timeout_s, seed=seed)

    found = run_submission(lambda: run(files), lambda: run({})) or {}
    ignored = frozenset(map(plain_name, unstable))
    verdict = compare(expected, found, chosen, ignored)
    if found and not verdict.solved and set(map(plain_name, fail_to_pass)) <= verdict.matched:
        verdict = compare(expected.unchanged(run({})), found, chosen, ignored)  # nor does what is otherwise today
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
