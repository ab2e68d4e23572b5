"""benchmarks/gpu.py where there is no GPU: every part in miniature, all in one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
PARTS = ("quickstart", "logprobs", "attention", "tree", "learner")


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """The folder of the results."""
    folder = tmp_path_factory.mktemp("gpu")
    command = [sys.executable, str(SCRIPT), "--part", *PARTS, "--out", str(folder)]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    return folder


@pytest.mark.parametrize("part", PARTS)
def test_gpu_script_runs_a_part_in_miniature(part, out) -> None:
    rows = json.loads((out / f"{part}.json").read_text())["rows"]
    assert rows
    assert all(row.get("holds", True) for row in rows)


def test_gpu_script_keeps_finished_parts(tmp_path) -> None:
    for part in ("quickstart", "vllm", "logprobs", "attention", "tree", "learner", "rollouts", "sync"):
        kept = {"part": part, "device": "kept", "seconds": 1.0, "finished": True, "rows": [{"what": "x", "value": 1.0}]}
        (tmp_path / f"{part}.json").write_text(json.dumps(kept))
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.count("(kept, 1 s)") == 8
