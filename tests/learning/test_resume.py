"""A run that is killed, again and again, and resumed gives what an undisturbed run gives, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from agentgym_trainers.config.sections import Config
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.recipe import to_toml

CONFIG = {
    "name": "resumed",
    "run": {"steps": 6, "checkpoint_every": 2, "keep_checkpoints": 2, "trajectories_every": 3, "threads": 1},
    "model": {"tiny": {"hidden_size": 32, "layers": 2, "intermediate_size": 48, "vocab_size": 320}},
    "env": {"name": "keydoor", "serve": False, "max_turns": 3},
    "rollout": {"groups": 4, "group_size": 4, "max_new_tokens": 6, "concurrency": 16, "lockstep": True},
    "credit": {"assigner": "turn_gae"},
    "value": {},
    "loss": {"kl": 0.01, "entropy": 0.001},
    "optim": {"lr": 1e-3, "epochs": 2, "minibatches": 2, "tokens_per_micro_batch": 2000},
    "sft": {"demonstrations": 48, "noise": 0.3, "batch": 8, "max_steps": 12, "stop_at_success": 1.0, "check_every": 6},
    "eval": {"split": "test", "tasks": 6, "attempts": 2},
}

# Imports once; then each line on stdin is a folder, and a child that is forked there carries the run on in it. An
# evaluation whose folder has the file `wait` waits there after its third attempt.
SERVER = """
import asyncio, os, sys, time, warnings
from io import StringIO
from pathlib import Path
warnings.simplefilter("error")
import torch
from rich.console import Console
from rich.progress import Progress
from agentgym.evaluation.run_folder import RunFolder
from agentgym_trainers.recipe import resolve
from agentgym_trainers.run import run
torch.set_num_threads(1)
add = RunFolder.add
def add_and_wait(self, *arguments):
    row = add(self, *arguments)
    while len(self.rows) >= 3 and (self.out / "wait").exists():
        time.sleep(0.01)
    return row
RunFolder.add = add_and_wait
config = resolve(sys.argv[1])
for line in sys.stdin:
    child = os.fork()
    if not child:
        asyncio.run(run(config, Path(line.strip()), resume=True, progress=Progress(console=Console(file=StringIO()))))
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Runs:
    """Starts runs in processes that can be killed."""

    def __init__(self, recipe: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(recipe)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def go_on(self, folder: Path, kill_when: Callable[[], bool] = lambda: False, delay_s: float = 0.0) -> int:
        """The exit code of the run's process, which is killed `delay_s` after the condition holds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{folder}\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        while Path(f"/proc/{child}").exists():
            if kill_when():
                time.sleep(delay_s)
                os.kill(child, signal.SIGKILL)
                break
            time.sleep(0.002)
        return int(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(params=[{}, {"lora": {"rank": 4}}], ids=["all", "adapters"])
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runs]:
    recipe = tmp_path / "recipe.toml"
    config = CONFIG | {"model": CONFIG["model"] | request.param}
    recipe.write_text(to_toml(Config.model_validate(config)))
    runs = Runs(recipe)
    yield runs
    runs.close()


def count(path: Path, word: str = "") -> int:
    return sum(word in line for line in path.read_text().splitlines()) if path.is_file() else 0


def metrics(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


@pytest.mark.learning
def test_killed_and_resumed_equals_undisturbed(runs: Runs, tmp_path: Path) -> None:
    undisturbed, cut = tmp_path / "whole", tmp_path / "cut"
    assert runs.go_on(undisturbed) == 0
    expected = metrics(undisturbed)
    assert [line["phase"] for line in expected] == ["sft"] * 12 + ["rl"] * 6 + ["eval"] * 2

    log = cut / "metrics.jsonl"
    rng = np.random.default_rng(0)
    moments: dict[str, Callable[[], bool]] = {
        "in the warm-up": lambda: count(log, '"sft"') >= 5,
        "in the evaluation before": lambda: count(cut / "eval" / "before" / "attempts.jsonl") >= 3,
        "after a step without a checkpoint": lambda: count(log, '"rl"') >= 1,
        "about a checkpoint": lambda: count(log, '"rl"') >= 2,
        "after a checkpoint": lambda: (cut / "checkpoints" / "step-000004").exists(),
        "in the evaluation after": lambda: count(cut / "eval" / "after" / "attempts.jsonl") >= 3,
    }
    after = cut / "eval" / "after"
    after.mkdir(parents=True)
    (after / "wait").touch()  # nothing comes after it: on a busy machine the run had ended before it was killed
    for name, moment in moments.items():
        assert runs.go_on(cut, moment, rng.uniform(0, 0.03)) == -signal.SIGKILL, name
    (after / "wait").unlink()
    assert runs.go_on(cut) == 0

    for ours, theirs in zip(metrics(cut), expected, strict=True):
        assert ours == theirs
    last = "step-000006"
    weights = [
        {path.name: path.read_bytes() for path in (folder / "checkpoints" / last).rglob("*.safetensors")}
        for folder in (cut, undisturbed)
    ]
    assert weights[0]
    assert weights[0] == weights[1]
    states = [checkpoint.load_state(folder / "checkpoints" / last) for folder in (cut, undisturbed)]
    for state in states:
        for key in ("metrics_bytes", "metrics_sha256"):
            state.pop(key)  # the seconds in the log are other digits
    torch.testing.assert_close(*states, rtol=0, atol=0)
    for folder in (cut, undisturbed):
        assert sorted(p.name for p in (folder / "checkpoints").glob("*")) == ["step-000000", "step-000004", last]
    summaries = [json.loads((folder / "eval" / "summary.json").read_text()) for folder in (cut, undisturbed)]
    assert summaries[0] == summaries[1]
