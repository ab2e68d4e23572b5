"""Asynchronous training while its trainer and its environment's server are killed, its environment sleeps and its disk
is full.

`pytest tests/chaos/test_training.py -m kills --runs 20` trains twenty times under kills instead of once. Kills of
synchronous training, whose numbers must then be the very same, are in tests/learning/test_resume.py.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos.trainings import Deed, Trainings, check, steps_of, trainings, victims

from agentgym_trainers.config.sections import Config
from agentgym_trainers.recipe import to_toml

pytestmark = [pytest.mark.kills, pytest.mark.timeout(900)]

STEPS, EVERY, GROUPS, SIZE, STALENESS = 20, 4, 4, 8, 2
LAST = 6
"""Steps at the end whose success is compared."""
NOISE = 0.23
"""Of two runs' success at the end. Five that nothing happened to, of other seeds, had 0.65 to 0.76, a standard
deviation of 0.04; this is four of a difference's. Where they begin, success is 0.35 lower."""
DEAD = r"the server of oracle ended with status -9(, twice within 60 s|, and could not be started again|\. The end)"
RECIPE: dict[str, Any] = {
    "name": "chaos",
    "run": {"steps": STEPS, "checkpoint_every": EVERY, "threads": 1},
    "model": {"tiny": {"hidden_size": 32, "layers": 2, "intermediate_size": 48, "vocab_size": 320}},
    "env": {"name": "oracle"},
    "rollout": {
        "groups": GROUPS, "group_size": SIZE, "staleness": STALENESS, "lockstep": False,
        "max_new_tokens": 6, "max_length": 400, "concurrency": 64,
    },
    "credit": {"assigner": "rloo"},
    "loss": {"entropy": 0.001},
    "optim": {"lr": 2e-3, "minibatches": 1},
    "eval": {"split": "train", "tasks": 0},
}  # fmt: skip
WARM_UP = {"demonstrations": 256, "noise": 0.5, "lr": 5e-3, "max_steps": 150, "stop_at_success": 0.2, "check_every": 10}


def recipe(home: Path, **sections: dict[str, Any]) -> str:
    """The path of RECIPE with these options in place of its own."""
    tree = RECIPE | {name: RECIPE.get(name, {}) | options for name, options in sections.items()}
    path = home / "recipe.toml"
    path.write_text(to_toml(Config.model_validate(tree)))
    return str(path)


@pytest.fixture(scope="module")
def forked(tmp_path_factory) -> Iterator[Trainings]:
    with trainings(tmp_path_factory.mktemp("trainings")) as forked:
        yield forked


@pytest.fixture(scope="module")
def start(forked: Trainings, tmp_path_factory) -> Path:
    """A checkpoint that wins now and then."""
    folder = tmp_path_factory.mktemp("start")
    ended = forked.go_on(folder / "run", recipe(folder, run={"steps": 0}, sft=WARM_UP))
    assert ended.status == 0, ended.output
    return folder / "run" / "checkpoints" / "step-000000"


@pytest.fixture(scope="module")
def undisturbed(forked: Trainings, start: Path, tmp_path_factory) -> float:
    """Success at the end of a run that nothing happens to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    ended = forked.go_on(folder / "run", recipe(folder, model={"path": str(start)}))
    assert ended.status == 0, ended.output
    check(folder / "run", STEPS, GROUPS, STALENESS)
    return success(folder / "run")


def success(folder: Path) -> float:
    return sum(line["rollout/success"] for line in steps_of(folder)[-LAST:]) / LAST


def kills(chance: random.Random, folder: Path, whoms: list[str]) -> list[Deed]:
    """Of one process: before its first step, or within some more of them."""
    deeds, at = [], len(steps_of(folder))
    for whom in whoms:
        at += chance.randint(0, 5)
        deeds.append(Deed(lambda at=at: len(steps_of(folder)) >= at, chance.uniform(0, 0.6), whom))
    return deeds


def test_killed_again_and_again(forked, start, undisturbed, tmp_path, training_number) -> None:
    """A trainer that is killed goes on by --resume; an environment that is killed once is survived, twice is one
    sentence."""
    chance, folder = random.Random(training_number + 1), tmp_path / "run"
    arguments = recipe(tmp_path, model={"path": str(start)})
    statuses = []
    for whoms in victims(chance, training_number, ["env", "trainer"], ("trainer", "env"), (1, 1, 2)):
        ended = forked.go_on(folder, arguments, deeds=kills(chance, folder, whoms))
        statuses.append(ended.status)
        assert ended.status in ((0, 1, 2, -9) if whoms else (0,)), ended.output
        if ended.status > 0:
            assert re.match(DEAD, ended.complaint), ended.output
        if ended.status == 0:
            break
    print(f"ended with {statuses}, success {success(folder):.2f}, undisturbed {undisturbed:.2f}")
    check(folder, STEPS, GROUPS, STALENESS)
    assert abs(success(folder) - undisturbed) <= NOISE


def test_a_killed_env_is_survived(forked, start, tmp_path) -> None:
    folder = tmp_path / "run"
    deed = Deed(lambda: len(steps_of(folder)) >= 2, 0.1, "env")
    ended = forked.go_on(folder, recipe(tmp_path, run={"steps": 8}, model={"path": str(start)}), deeds=[deed])
    assert ended.status == 0, ended.output
    assert "the server of oracle ended with status -9: starting it again" in ended.output
    check(folder, 8, GROUPS, STALENESS)


def test_an_env_killed_twice_stops_the_run_which_can_resume(forked, start, tmp_path) -> None:
    """Episodes that failed for want of an environment are not kept: they are played when the run is resumed."""
    folder, arguments = tmp_path / "run", recipe(tmp_path, run={"steps": 8}, model={"path": str(start)})
    deeds = [Deed(lambda at=at: len(steps_of(folder)) >= at, 0.1, "env") for at in (1, 5)]
    ended = forked.go_on(folder, arguments, deeds=deeds)
    assert ended.status == 1, ended.output
    assert re.match(DEAD, ended.complaint), ended.output
    assert len(steps_of(folder)) < 8
    ended = forked.go_on(folder, arguments)
    assert ended.status == 0, ended.output
    check(folder, 8, GROUPS, STALENESS)


def test_an_env_that_sleeps_for_minutes_delays_nobody(forked, tmp_path) -> None:
    """One task in four sleeps for ten minutes. The run's steps go on; once all that may be under way sleeps, they wait
    for the deadline of an episode, and for nothing else."""
    folder, limits = tmp_path / "run", {"name": "chaos.envs:Sleeper", "max_turns": 2, "episode_s": 4.0}
    rollout = {"groups": 3, "group_size": 2, "staleness": 1}
    ended = forked.go_on(folder, recipe(tmp_path, run={"steps": 8}, env=limits, rollout=rollout))
    assert ended.status == 0, ended.output
    check(folder, 8, 3, 1)
    # To learn from 24 prompts of tasks that begin, 32 are issued; of the 8 others at most 6 are still under way.
    assert sum(line["async/failed_groups"] for line in steps_of(folder)) >= 2
    assert all(line["rollout/failed"] == 0 for line in steps_of(folder))


def test_an_invalid_journal_is_an_error_and_can_be_deleted(forked, start, tmp_path) -> None:
    folder, arguments = tmp_path / "run", recipe(tmp_path, run={"steps": 8}, model={"path": str(start)})
    cut = Deed(lambda: len(steps_of(folder)) >= 5, 0.0, "trainer")
    assert forked.go_on(folder, arguments, deeds=[cut]).status == -9
    journal = folder / "journal.sqlite"
    for path in folder.glob("journal.sqlite-*"):
        path.unlink()
    journal.write_bytes(b"no database at all, but long enough to be one" * 500)
    ended = forked.go_on(folder)
    assert ended.status == 2, ended.output
    assert f"{journal} is no journal of a run" in ended.complaint
    journal.unlink()
    ended = forked.go_on(folder)
    assert ended.status == 0, ended.output
    assert [line["step"] for line in steps_of(folder)] == list(range(1, 9))


def test_a_full_disk_ends_in_a_sentence_and_loses_nothing(start, tmp_path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no user namespace to mount a small file system in: install util-linux, and allow them")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = 'mount -t tmpfs -o size=24m tmpfs "$0" && exec "$@"'
    with trainings(tmp_path, within=("unshare", "-rm", "sh", "-c", mounting, str(disk))) as confined:
        folder, arguments = disk / "run", recipe(tmp_path, run={"steps": 8}, model={"path": str(start)})
        host_folder, filling = confined.host_path(folder), confined.host_path(disk / "filling")
        full = Deed(lambda: len(steps_of(host_folder)) >= EVERY + 1, 0.0, lambda: fill(filling))
        ended = confined.go_on(folder, arguments, deeds=[full])
        assert ended.status == 2, ended.output
        assert "\n" not in ended.complaint.strip()
        assert str(folder) in ended.complaint
        assert "resume" in ended.complaint
        filling.unlink()
        ended = confined.go_on(folder)
        assert ended.status == 0, ended.output
        copy = shutil.copytree(host_folder, tmp_path / "copy")  # SQLite takes no path through another's root
        check(copy, 8, GROUPS, STALENESS)


def fill(file: Path) -> None:
    """Write until there is no room."""
    with file.open("wb", buffering=0) as writing, contextlib.suppress(OSError):
        while writing.write(b"x" * 4096):
            pass
