"""benchmarks/gpu.py where there is no GPU: every part in miniature, each once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@pytest.mark.parametrize("part", ["quickstart", "logprobs", "attention", "tree", "learner"])
def test_gpu_script_runs_a_part_in_miniature(part, tmp_path) -> None:
    command = [sys.executable, str(SCRIPT), "--part", part, "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    result = tmp_path / f"{part}.json"
    rows = json.loads(result.read_text())["rows"]
    assert rows
    assert all(row.get("holds", True) for row in rows)


def test_gpu_script_keeps_finished_parts(tmp_path) -> None:
    for part in ("quickstart", "vllm", "logprobs", "attention", "tree", "learner", "rollouts"):
        kept = {"part": part, "device": "kept", "seconds": 1.0, "finished": True, "rows": [{"what": "x", "value": 1.0}]}
        (tmp_path / f"{part}.json").write_text(json.dumps(kept))
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.count("(kept, 1 s)") == 7
