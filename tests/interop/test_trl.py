"""TRL's GRPOTrainer, with OpenEnv's client as its environment, trains on an environment of ours."""

from __future__ import annotations

import json
import subprocess

import pytest


@pytest.fixture(scope="module")
def trl(upstream) -> None:
    if subprocess.run([upstream, "-c", "import trl"], capture_output=True).returncode:
        pytest.skip("the interop environment has no trl: delete .venv-interop and run `make interop` again")


def test_trl_trains_on_our_env(trl, our_server, run_upstream, tmp_path):
    output = run_upstream("trl_script.py", our_server, str(tmp_path))
    result = json.loads(output.rpartition("RESULT ")[2])
    assert (result["steps"], len(result["episodes"])) == (2, 8)
    solved = [episode for episode in result["episodes"] if episode["reward"] == 1.0]
    assert solved, "nobody said the three words"
    assert all(episode["said"] == ["apple", "brook", "cloud"] for episode in solved)
    assert all(episode["reward"] == 0.0 for episode in result["episodes"] if episode not in solved)
    assert result["log"][-1]["tools/failure_frequency"] == 0.0
