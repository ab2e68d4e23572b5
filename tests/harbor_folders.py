"""Harbor task folders for tests, small ones."""

from __future__ import annotations

from pathlib import Path

TOML = """schema_version = "1.4"
[task]
name = "test/{name}"
[environment]
build_timeout_sec = 120.0
memory_mb = {memory_mb}
storage_mb = 64
network_mode = "no-network"
{environment}
[agent]
timeout_sec = {agent_s}
{agent}
[verifier]
timeout_sec = {tests_s}
{verifier}
"""

DOCKERFILE = """FROM {base}
WORKDIR /app
RUN echo old > note && echo keep > other
{more}
"""
TESTS = """#!/bin/bash
python3 - <<'PY' && python3 /tests/check.py
import csv, glob, json, random, re, shutil, socket, struct, subprocess, tempfile
PY
if [ $? -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
chmod 600 /logs/verifier/reward.txt
"""
CHECK = """import json, sys
sys.exit(open("/app/answer").read().strip() != "forty-two")
"""


def harbor_folder(
    place: Path,
    *,
    base: str = "python:3.11-slim-bookworm",
    dockerfile: str = "",
    tests: str = TESTS,
    solution: str = "echo forty-two > /app/answer",
    agent_s: float = 600,
    tests_s: float = 60,
    memory_mb: int = 256,
    environment: str = "",
    agent: str = "",
    verifier: str = "",
) -> Path:
    """Write a task that wants "forty-two" in /app/answer, tested in no careful way; returns its folder."""
    files = {
        "instruction.md": "Write the answer to /app/answer.\n",
        "task.toml": TOML.format(
            name=place.name,
            environment=environment,
            agent_s=agent_s,
            memory_mb=memory_mb,
            agent=agent,
            tests_s=tests_s,
            verifier=verifier,
        ),
        "environment/Dockerfile": DOCKERFILE.format(base=base, more=dockerfile),
        "tests/test.sh": tests,
        "tests/check.py": CHECK,
        "solution/solve.sh": f"#!/bin/bash\n{solution}\n",
    }
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(content, encoding="utf-8")
    return place
