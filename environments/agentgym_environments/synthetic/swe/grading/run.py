"""Run a script of hidden tests on a package, in a sandbox of its own, and read what was observed."""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path

from agentgym_environments.backends.sandbox import Sandbox, SandboxLimits
from agentgym_environments.synthetic.swe import source as sources
from agentgym_environments.synthetic.swe.grading.template import Script, Template, draw
from agentgym_environments.synthetic.swe.source import PackageSource

MOST_BYTES, MOST_LINES, MOST_LETTERS = 16 << 20, 300_000, 400
"""Bounds of a log, of its lines and of each of them; what is beyond is left out."""

Test = tuple[str, int]
"""("tests/test_a.py::TestB::test_c", variant); variant 0 is the test as the package has it."""
Observations = dict[Test, dict[int, list[str]]]
"""Test -> point -> its texts in order; point `END` has how the test ended, `OUTCOME - point` how a check came out."""
END, OUTCOME = -1, -2


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
    visible = {path: content for path, content in {**package.visible, **files}.items() if content is not None}
    root = f"{package.root}/" if package.root else ""
    hidden = {f"{root}{path}" if path == f"{script.plugin}.py" else path: one for path, one in script.files.items()}
    tests = sorted(path for path in template.files if sources.is_test_file(path))
    options = "-q --tb=no --assert=plain -p no:cacheprovider -c /dev/null --rootdir=/work --import-mode=prepend"
    options += " --continue-on-collection-errors"
    with Sandbox(
        {**visible, **hidden},
        limits=SandboxLimits(memory_mb=2048, processes=256),  # pyright: ignore[reportCallIssue]
        readonly={str(sources.tools(cache)): "/opt/tools"},
        env={"PYTHONPATH": f"/opt/tools:/work/{package.root}"},
        backend=backend,
    ) as box:
        box.run(f"python -P -m pytest {options} -p {script.plugin} {' '.join(tests)} >/dev/null 2>&1", timeout_s)
        return read_log(box.read(channel) or b"", script)


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
