"""Writing of Harbor task folders: an environment says what a task's folder holds, `write_folder` writes it.

An environment that can be Harbor tasks has a method `harbor_folder(split, index) -> HarborFolder`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from agentgym.errors import ConfigError

BASE = "python:3.11-slim-bookworm"
WORKDIR = "/app"
"""Folder in which the agent works; of its container, the verifier gets this folder alone."""
VERIFIER = Path(__file__).with_name("harbor_verifier.py")

TASK = """schema_version = "1.4"
artifacts = ["{workdir}"]

[task]
name = {name}
description = {description}
keywords = {keywords}

[metadata]
author_name = "AgentGym"

[environment]
build_timeout_sec = 600.0
cpus = 1
memory_mb = {memory_mb}
storage_mb = 2048
network_mode = "no-network"
workdir = "{workdir}"

[agent]
timeout_sec = {agent_s:.1f}

[verifier]
timeout_sec = {tests_s:.1f}
environment_mode = "separate"
"""
TEST = """#!/bin/bash
# What is tested runs as other users, who can read neither this folder nor where the reward goes.
chmod -R go-rwx /tests /logs/verifier
exec env -i PATH=/usr/local/bin:/usr/bin:/bin PYTHONPATH=/tests/modules python3 -P -S /tests/checks.py
"""


class HarborFolder(NamedTuple):
    """A task of an environment as the folder that Harbor reads. Files are path -> content, below their folder."""

    name: str
    """Name of folder and task: letters, digits, dots and hyphens."""
    description: str
    instruction: str
    keywords: tuple[str, ...]
    environment: Mapping[str, bytes]
    """Files of the agent's image, a Dockerfile among them."""
    tests: Mapping[str, bytes]
    """Files of the verifier beside test.sh: `checks.py`, which writes the reward, and in `modules` what it imports;
    `agentgym_environments.tasks.harbor_verifier` is there."""
    solve: str
    """Commands of the solution, for bash."""
    memory_mb: int
    agent_s: float
    tests_s: float


def write_folder(folder: HarborFolder, out: Path) -> Path:
    """Write a task below `out` and return its folder.

    Raises ConfigError where there is one of its name, and where nothing can be written."""
    place = out / folder.name
    if place.exists():
        raise ConfigError(f"{place} exists: remove it, or name another folder for the tasks")
    try:
        _write_files(folder, place)
    except OSError as error:
        raise ConfigError(f"{place} cannot be written ({error.strerror}); name another folder for the tasks") from error
    return place


def _write_files(folder: HarborFolder, place: Path) -> None:
    task = TASK.format(
        workdir=WORKDIR,
        name=json.dumps(f"agentgym/{folder.name}"),
        description=json.dumps(folder.description),
        keywords=json.dumps(folder.keywords),
        memory_mb=folder.memory_mb,
        agent_s=folder.agent_s,
        tests_s=folder.tests_s,
    )
    files = {
        "instruction.md": f"{folder.instruction.strip()}\n".encode(),
        "task.toml": task.encode(),
        **{f"environment/{path}": content for path, content in folder.environment.items()},
        "tests/test.sh": TEST.encode(),
        f"tests/modules/agentgym_environments/tasks/{VERIFIER.name}": VERIFIER.read_bytes(),
        **{f"tests/{path}": content for path, content in folder.tests.items()},
        "solution/solve.sh": f"#!/bin/bash\nset -e\n{folder.solve.strip()}\n".encode(),
    }
    for path, content in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content)
    for script in ("tests/test.sh", "solution/solve.sh"):
        (place / script).chmod(0o755)
