"""Every example runs in a process of its own, in seconds, and prints what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PROMISES = {
    "01_play_an_environment.py": [
        "solver: success=True score=1",
        "a script: success=True",
        "a stubborn one: success=False",
    ],
    "02_write_an_environment.py": ["ok   same_seed_same_episode", "found, reward 1"],
    "03_gymnasium_loop.py": ["solved, reward 1, success True", "8 sessions, 1600 steps"],
    "04_train_an_agent.py": ["step 6: success", "after: ", "report.html"],
    "own_assigner.py": [
        "own_assigner:elsewhere: What is still to come",
        "needs anchors, groups",
        "sA +1.00   sB +0.00",
    ],
    "own_scorer.py": ["@HFF", "down   Q 0.774  score -5"],
    "own_signal.py": ["tasks that have a mean: 4", "tasks that have a mean: 8"],
    "own_source.py": ["step 2: 10.0 turns an episode"],
    "own_engine.py": ["40 replies, the longest of "],
    "06_train_an_external_agent.py": ["step 1: 3 turns, gap ", "step 2: 3 turns, gap ", "report.html"],
    "poles.py": ["cart at ", "return 500, success True"],
    "05_assign_credit.py": ["grpo: ", "gigpo: ", "turn_gae: ", "return 1:  s0"],
}


def scripts() -> list[Path]:
    """Those that are run; the others are modules."""
    return sorted(path for path in EXAMPLES.glob("*.py") if 'if __name__ == "__main__"' in path.read_text("utf-8"))


def test_every_example_is_promised_and_short():
    assert {path.name for path in scripts()} == PROMISES.keys()
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 60, path.name


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.stem)
def test_it_runs(path, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", str(path)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "FAIL" not in done.stdout
    for promise in PROMISES[path.name]:
        assert promise in done.stdout
    assert list(tmp_path.iterdir()) == []
