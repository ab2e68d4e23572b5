"""The verdict on a fix: what its tests compute is compared, here, with what the package without the bug computes.

The tested process reports values and knows neither what is expected nor which of the tests are planted: copies of tests
with other literals, whose checks come out either way. `grading/` has how the tests are rewritten and run.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping
from pathlib import Path

from agentgym_environments.backends.sandbox import backends
from agentgym_environments.base.grading import run_submission
from agentgym_environments.synthetic.swe.grading.make_reference import reference
from agentgym_environments.synthetic.swe.grading.observations import Observations
from agentgym_environments.synthetic.swe.grading.run import observe
from agentgym_environments.synthetic.swe.grading.verdict import PatchVerdict, choose, decide
from agentgym_environments.synthetic.swe.source import PackageSource


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
    chance = random.Random(secrets.randbits(128))
    chosen = choose(expected.template, fail_to_pass, chance)
    seed = chance.getrandbits(128)  # one order for both runs: some tests leave behind what changes a later one

    def run(fix: Mapping[str, bytes | None]) -> Observations:
        return observe(package, fix, expected.template, chosen, cache, backend=backend, timeout_s=timeout_s, seed=seed)

    def found() -> Observations:
        return run_submission(lambda: run(files), lambda: run({})) or {}

    return decide(expected, found(), chosen, fail_to_pass, unstable, lambda: run({}), found)
