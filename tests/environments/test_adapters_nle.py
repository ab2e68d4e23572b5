"""NetHack, in an interpreter of its own: NLE pins another Gymnasium. Each test is a function of nle_checks.py."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("nle_checks.py")
NAMES = [
    line.removeprefix("def ").partition("(")[0]
    for line in CHECKS.read_text().splitlines()
    if line.startswith("def check")
]


@pytest.fixture
def interpreter() -> str:
    if not os.environ.get("AGENTGYM_NLE_PYTHON"):
        pytest.skip("AGENTGYM_NLE_PYTHON names no interpreter that has NLE: run `make envs`")
    return os.environ["AGENTGYM_NLE_PYTHON"]


@pytest.mark.envs
@pytest.mark.parametrize("name", NAMES)
def test_nethack(interpreter, name):
    run = subprocess.run([interpreter, str(CHECKS), name], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
