"""Run a script of hidden tests on a package, in a sandbox of its own, and read what was observed."""

from __future__ import annotations

import random
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path

from agentgym_environments.backends.sandbox import Sandbox, SandboxLimits
from agentgym_environments.synthetic.swe import source as sources
from agentgym_environments.synthetic.swe.grading.observations import Observations, read_log
from agentgym_environments.synthetic.swe.grading.paths import is_test_file
from agentgym_environments.synthetic.swe.grading.session import pytest_arguments, session_files
from agentgym_environments.synthetic.swe.grading.template import Template, draw
from agentgym_environments.synthetic.swe.source import PackageSource


def observe(
    package: PackageSource,
    files: Mapping[str, bytes | None],
    template: Template,
    chosen: Collection[tuple[str, int]],
    cache: Path,
    *,
    backend: str = "auto",
    timeout_s: float = 60.0,
    alarm_s: int = 0,
    seed: int | None = None,
) -> Observations:
    """Observations of the tests and of the variants `chosen` on `package` with `files` in place of its own; a file that
    is None is left out. Names, keys and order are drawn by `seed`, anew without one. Raises SandboxLost."""
    channel = f"/tmp/{secrets.token_hex(8)}"
    script = draw(template, chosen, channel, random.Random(secrets.randbits(128) if seed is None else seed), alarm_s)
    tests = [path for path in template.files if is_test_file(path)]
    arguments = " ".join(pytest_arguments(script, tests, "/work"))
    with Sandbox(
        session_files(package.visible, files, script, package.root),
        limits=SandboxLimits(memory_mb=2048, processes=256),  # pyright: ignore[reportCallIssue]
        readonly={str(sources.tools(cache)): "/opt/tools"},
        env={"PYTHONPATH": f"/opt/tools:/work/{package.root}"},
        backend=backend,
    ) as box:
        box.run(f"python -P -m pytest {arguments} >/dev/null 2>&1", timeout_s)
        return read_log(box.read(channel) or b"", script)
