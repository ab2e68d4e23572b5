"""Training on a Ray cluster of two nodes while its controller, learners, rollout workers and environments are killed.

`make scale` installs Ray beside this environment and runs this; `--runs 20` trains twenty times.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

import psutil
import pytest
from chaos.processes import MARK, command_of, kill, marked, wait_for
from chaos.trainings import GONE_S, Deed, Trainings, check, steps_of, trainings, victims
from ray_nodes import started

from agentgym_trainers.config.sections import Config
from agentgym_trainers.recipe import to_toml

pytestmark = [
    pytest.mark.skipif(util.find_spec("ray") is None, reason="Ray is not installed here: run `make scale`"),
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("default"),  # Ray's own
]
STEPS, STALENESS = 8, 2
KINDS = ("trainer", "LearnerWorker", "RolloutWorker", "RolloutWorker", "env")
FIRST, FIRST_ASYNCHRONOUS = ["RolloutWorker", "env", "LearnerWorker"], ["RolloutWorker", "env", "trainer"]
"""Whom to kill in the first training of each kind."""
DEAD = (
    r"a learner's process is gone|a learner did not answer|3 rollout workers were lost over the same"
    r"|the server of oracle ended with status -9|every episode of \d+ groups failed"
)
RECIPE: dict[str, Any] = {
    "name": "chaos",
    "run": {"steps": STEPS, "checkpoint_every": 1, "trajectories_every": 1, "threads": 1},
    "model": {"tiny": {"hidden_size": 32, "layers": 2, "intermediate_size": 48, "vocab_size": 320}},
    "env": {"name": "oracle"},
    "rollout": {"groups": 4, "group_size": 8, "max_new_tokens": 6, "max_length": 400, "concurrency": 32},
    "credit": {"assigner": "turn_gae"},
    "value": {},
    "loss": {"entropy": 0.1},
    "optim": {"lr": 1e-3},
    "eval": {"split": "train", "tasks": 0},
    "scale": {"kind": "ray", "learners": 2, "workers": 2, "deadline_s": 240.0},
}

WARM_UP = {"demonstrations": 256, "noise": 0.5, "lr": 5e-3, "max_steps": 150, "stop_at_success": 0.2, "check_every": 10}


@dataclass(frozen=True)
class Nodes:
    """A cluster, by the mark of its processes."""

    mark: str

    def actors(self, name: str) -> list[int]:
        """Their processes write over their environment: they are known as children of a node's own."""
        nodes = [pid for pid in marked(self.mark) if "/raylet/raylet" in command_of(pid)]
        children = [child.pid for pid in nodes for child in psutil.Process(pid).children()]
        return [pid for pid in children if command_of(pid).startswith(f"ray::{name}")]

    def envs(self) -> list[int]:
        return [pid for pid in marked(self.mark) if "agentgym_servers.env_server.app" in command_of(pid)]

    def kill_one(self, chance: random.Random, whom: str) -> bool:
        """Whether there was one to kill."""
        found = self.envs() if whom == "env" else self.actors(whom)
        if found:
            kill(chance.choice(found))
        return bool(found)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """With room for two processes each; trainings find it by RAY_ADDRESS."""
    with pytest.MonkeyPatch.context() as patch:
        mark = uuid.uuid4().hex
        patch.setenv(MARK, mark)
        patch.setenv("PYTHONPATH", os.pathsep.join(folder for folder in sys.path if folder))
        with started(2, 2) as cluster:
            patch.delenv(MARK)
            patch.setenv("RAY_ADDRESS", cluster.address)
            yield Nodes(mark)


@pytest.fixture(scope="module")
def forked(nodes, tmp_path_factory) -> Iterator[Trainings]:
    with trainings(tmp_path_factory.mktemp("trainings"), deadline_s=900.0) as forked:
        yield forked


def recipe(home: Path, **sections: Any) -> str:
    """The path of RECIPE with these sections in place of its own; None leaves one out."""
    tree = {name: section for name, section in (RECIPE | sections).items() if section is not None}
    path = home / "recipe.toml"
    path.write_text(to_toml(Config.model_validate(tree)))
    return str(path)


@pytest.fixture(scope="module")
def start(forked: Trainings, tmp_path_factory) -> dict[str, str]:
    """A checkpoint that wins now and then."""
    folder = tmp_path_factory.mktemp("start")
    ended = forked.go_on(folder / "run", recipe(folder, run={"steps": 0, "threads": 1}, sft=WARM_UP, scale=None))
    assert ended.status == 0, ended.output
    return {"path": str(folder / "run" / "checkpoints" / "step-000000")}


@pytest.fixture(scope="module")
def undisturbed(forked: Trainings, start: dict[str, str], tmp_path_factory) -> Path:
    """A run that nothing happens to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    ended = forked.go_on(folder / "run", recipe(folder, model=start))
    assert ended.status == 0, ended.output
    played = episodes(folder / "run")
    assert len(played) == STEPS
    assert any(success for step in played for *_, success in step)
    return folder / "run"


def episodes(folder: Path) -> list[list[Any]]:
    """What was learned from: of each step, in order, each episode's prompt, attempt, replies and outcome."""
    steps = []
    for path in sorted((folder / "trajectories").glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        steps.append([
            (one["task"], one["seed"], one["attempt"], [turn["reply"] for turn in one["turns"]], one["success"])
            for one in lines
        ])  # fmt: skip
    return steps


def kills(chance: random.Random, folder: Path, nodes: Nodes, whoms: list[str]) -> list[Deed]:
    """Of one process of the controller."""
    deeds, at = [], len(steps_of(folder))
    for whom in whoms:
        at += chance.randint(0, 2)
        deed = whom if whom == "trainer" else lambda whom=whom: nodes.kill_one(chance, whom)
        deeds.append(Deed(lambda at=at: len(steps_of(folder)) >= at, chance.uniform(0, 1.0), deed))
        print(f"meant to kill: {whom} at step {at}")
    return deeds


def carried_through(
    nodes: Nodes, forked: Trainings, folder: Path, arguments: str, chance: random.Random, processes: list[list[str]]
) -> None:
    """A run, and whoever of its processes is chosen killed, to its end."""
    for whoms in processes:
        ended = forked.go_on(folder, arguments, deeds=kills(chance, folder, nodes, whoms))
        print(f"ended with {ended.status}: {ended.complaint.strip()[-200:] if ended.status > 0 else ''}")
        assert ended.status in ((0, 1, 2, -9) if whoms else (0,)), ended.output
        if ended.status > 0:
            assert re.match(DEAD, ended.complaint), ended.output
        if ended.status == 0:
            break

    def left() -> list[int]:
        return [*nodes.actors("LearnerWorker"), *nodes.actors("RolloutWorker"), *nodes.envs()]

    wait_for(lambda: not left(), GONE_S, lambda: f"no processes: {[command_of(pid) for pid in left()]}")


def test_killed_again_and_again(nodes, forked, start, undisturbed, tmp_path, training_number) -> None:
    """Whoever dies, what is learned from is what an undisturbed run learns from, each prompt once."""
    folder = tmp_path / "run"
    arguments = recipe(tmp_path, model=start)
    chance = random.Random(training_number + 200)
    processes = victims(chance, training_number, FIRST, KINDS, (1, 2, 3))
    carried_through(nodes, forked, folder, arguments, chance, processes)
    assert [line["step"] for line in steps_of(folder)] == list(range(1, STEPS + 1))
    assert episodes(folder) == episodes(undisturbed)
    for line, other in zip(steps_of(folder), steps_of(undisturbed), strict=True):
        same = {name: value for name, value in other.items() if name != "phase" and not name.startswith("time/")}
        assert {name: line[name] for name in same} == pytest.approx(same, rel=1e-3, abs=1e-4, nan_ok=True)


def test_an_asynchronous_run_is_killed_again_and_again(nodes, forked, start, tmp_path, training_number) -> None:
    """Whoever dies, each prompt is learned from once, and no token that is too old."""
    folder = tmp_path / "run"
    rollout = {**RECIPE["rollout"], "staleness": STALENESS, "lockstep": False}
    arguments = recipe(tmp_path, model=start, rollout=rollout)
    chance = random.Random(training_number + 300)
    processes = victims(chance, training_number, FIRST_ASYNCHRONOUS, KINDS, (1, 2, 3))
    carried_through(nodes, forked, folder, arguments, chance, processes)
    check(folder, STEPS, RECIPE["rollout"]["groups"], STALENESS)
