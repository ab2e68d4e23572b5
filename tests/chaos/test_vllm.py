"""Asynchronous training with a vLLM server of its own, while its trainer, that server and its environment's are killed.

`make scale RUNS=20` installs vLLM's build for CPUs beside this environment, and trains twenty times.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import pytest
from chaos.trainings import Deed, Trainings, check, steps_of, trainings, victims

from agentgym_trainers.config.sections import Config
from agentgym_trainers.recipe import to_toml

pytestmark = [
    pytest.mark.skipif(util.find_spec("vllm") is None, reason="vLLM is not installed here: run `make scale`"),
    pytest.mark.timeout(1800),
]
STEPS, GROUPS, STALENESS = 8, 4, 2
DEAD = (
    r"the server of oracle ended with status -9|every episode of \d+ groups failed|the vLLM server at \S+ cannot be"
    r"|the vLLM server ended with status 137"
)
"""The last where it was killed before it answered."""
RECIPE = {
    "name": "chaos",
    "run": {"steps": STEPS, "checkpoint_every": 2, "threads": 1},
    "model": {"tiny": {"layers": 2}},
    "env": {"name": "oracle"},
    "engine": {"kind": "vllm", "deadline_s": 240.0},
    "rollout": {
        "groups": GROUPS, "group_size": 4, "staleness": STALENESS, "lockstep": False,
        "max_new_tokens": 6, "max_length": 400, "concurrency": 32,
    },
    "credit": {"assigner": "rloo"},
    "loss": {"entropy": 0.01},
    "eval": {"split": "train", "tasks": 0},
}  # fmt: skip


@pytest.fixture(scope="module")
def forked(tmp_path_factory) -> Iterator[Trainings]:
    with trainings(tmp_path_factory.mktemp("trainings"), deadline_s=900.0) as forked:
        yield forked


def kills(chance: random.Random, folder: Path, whoms: list[str]) -> list[Deed]:
    """Of one process."""
    deeds, at = [], len(steps_of(folder))
    for whom in whoms:
        at += chance.randint(0, 3)
        deeds.append(Deed(lambda at=at: len(steps_of(folder)) >= at, chance.uniform(0, 0.6), whom))
    return deeds


def test_killed_again_and_again(forked, tmp_path, training_number) -> None:
    """Each prompt is learned from once, whoever dies."""
    chance, folder, path = random.Random(training_number + 100), tmp_path / "run", tmp_path / "recipe.toml"
    path.write_text(to_toml(Config.model_validate(RECIPE)))
    statuses, targets = [], []
    kinds = ("trainer", "env", "engine", "engine")
    for whoms in victims(chance, training_number, ["env", "engine", "trainer"], kinds, (1, 2, 3)):
        ended = forked.go_on(folder, str(path), deeds=kills(chance, folder, whoms))
        statuses.append(ended.status)
        targets += whoms
        assert ended.status in ((0, 1, 2, -9) if whoms else (0,)), ended.output
        if ended.status > 0:
            assert re.match(DEAD, ended.complaint), ended.output
        if ended.status == 0:
            break
    print(f"ended with {statuses}; meant to kill {targets}")
    check(folder, STEPS, GROUPS, STALENESS)


def test_a_killed_engine_is_survived(forked, tmp_path) -> None:
    folder, path = tmp_path / "run", tmp_path / "recipe.toml"
    path.write_text(to_toml(Config.model_validate(RECIPE)))
    ended = forked.go_on(folder, str(path), deeds=[Deed(lambda: len(steps_of(folder)) >= 2, 0.1, "engine")])
    assert ended.status == 0, ended.output
    assert "vLLM has died: starting it again" in ended.output
    check(folder, STEPS, GROUPS, STALENESS)
    assert all(line["async/failed_groups"] == 0 and line["rollout/failed"] == 0 for line in steps_of(folder))
