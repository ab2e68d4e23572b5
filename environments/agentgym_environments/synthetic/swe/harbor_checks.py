"""The verifier of an exported task: hidden tests report what the fixed package computes, and it is compared here."""

from __future__ import annotations

import json
import os
import random
import secrets
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from agentgym_environments.synthetic.swe.grading.observations import Observations, read_log
from agentgym_environments.synthetic.swe.grading.paths import is_code, is_test_file
from agentgym_environments.synthetic.swe.grading.reference import from_json
from agentgym_environments.synthetic.swe.grading.session import pytest_arguments, session_files
from agentgym_environments.synthetic.swe.grading.template import draw
from agentgym_environments.synthetic.swe.grading.verdict import choose, decide
from agentgym_environments.tasks import harbor_verifier as verifier

TESTS = Path(__file__).parent
SUBMISSION_USER, CONTROL_USER = 65534, 65533
"""The package without the bug is run by a user of its own, whose files the agent's code cannot read."""
FOLDER, TOOLS = "/work", "/opt/tools"
PATH = "/usr/local/bin:/usr/bin:/bin"
MOST_BYTES, MOST_FILES, LOG_BYTES = 4_000_000, 5000, 64 << 20


def submitted(visible: Mapping[str, bytes], module: str) -> dict[str, bytes | None]:
    """The package's code as the agent left it. Raises ValueError where that is too much."""
    files: dict[str, bytes | None] = {path: None for path in visible if is_code(path, module)}
    size = 0
    for path, length in verifier.regular_files("/app", MOST_FILES):
        if is_code(path, module):
            files[path] = verifier.content(f"/app/{path}", MOST_BYTES)
            size += length if files[path] != visible.get(path) else 0
    if size > MOST_BYTES:
        raise ValueError(f"the changes are more than {MOST_BYTES} bytes")
    return files


def main() -> None:
    task = json.loads((TESTS / "task.json").read_text(encoding="utf-8"))
    expected = from_json(json.loads((TESTS / "reference.json").read_text(encoding="utf-8")))
    package = TESTS / "package"
    visible = {path.relative_to(package).as_posix(): path.read_bytes() for path in package.rglob("*") if path.is_file()}
    try:
        files = submitted(visible, task["module"])
    except ValueError as error:
        return verifier.write_reward(0, f"not solved: {error}")
    verifier.write_files(TOOLS, {}, 0)
    zipfile.ZipFile(TESTS / "tools.zip").extractall(TOOLS)
    os.chmod(TOOLS, 0o755)
    chance = random.Random(secrets.randbits(128))
    chosen = choose(expected.template, task["fail_to_pass"], chance)
    seed = chance.getrandbits(128)

    def run(user: int, fix: Mapping[str, bytes | None]) -> Observations:
        channel = f"/tmp/{secrets.token_hex(8)}"
        script = draw(expected.template, chosen, channel, random.Random(seed))
        verifier.write_files(FOLDER, session_files(visible, fix, script, task["root"]), user)
        tests = [path for path in expected.template.files if is_test_file(path)]
        # -S: no package of the image, nor what the agent has added there, takes part
        arguments = [sys.executable, "-P", "-S", "-m", "pytest", *pytest_arguments(script, tests, FOLDER)]
        environment = {**task["environment"], "PATH": PATH, "PYTHONPATH": f"{TOOLS}:{FOLDER}/{task['root']}"}
        verifier.run_as(user, arguments, FOLDER, environment, task["timeout_s"])
        return read_log(verifier.content(channel, LOG_BYTES) or b"", script)

    def found() -> Observations:
        return run(SUBMISSION_USER, files)

    def control() -> Observations:
        return run(CONTROL_USER, {})

    verdict = decide(expected, found(), chosen, task["fail_to_pass"], task["unstable"], control, found)
    planted = f"{verdict.planted_differing} of {verdict.planted} variants differ"
    message = f"{'solved' if verdict.solved else 'not solved'}: {sorted(verdict.differing)[:10]}, {planted}"
    return verifier.write_reward(float(verdict.solved), message)


if __name__ == "__main__":
    main()
