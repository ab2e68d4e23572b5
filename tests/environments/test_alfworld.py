"""ALFWorld's own format of games: what is played of a folder, in which order, and how a suite is played on it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from agentgym import registry
from agentgym.errors import ConfigError, MissingDependency
from agentgym.evaluation.evaluate import evaluate
from agentgym.evaluation.suite import load_suite
from agentgym.rollouts.policy import SolverPolicy
from agentgym_environments.benchmarks.alfworld.env import AlfWorld

TYPES = ("pick_and_place_simple", "pick_heat_then_place_in_recep")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder as `alfworld-download` makes it, with games of kitchens of our own."""
    try:
        kitchen = registry.make("kitchen-textworld")
    except MissingDependency as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("alfworld")
    for split, count in (("train", 1), ("valid_seen", 3), ("valid_unseen", 3)):
        for number in range(count):
            game = kitchen.game("train", number)
            write(folder, split, f"{TYPES[number % 2]}-Mug-None-Desk-{30 + number}/trial_T20190906_{number}", game)
    kitchen.close()
    unsolved = {**game, "solvable": False}
    write(folder, "valid_unseen", "pick_and_place_simple-Cup-None-Desk-1/trial_T1", unsolved)
    write(folder, "valid_unseen", "pick_and_place_with_movable_recep-Cup-Pan-Desk-1/trial_T1", game)
    write(folder, "valid_unseen", "pick_and_place_simple-AppleSliced-None-Desk-1/trial_T1", game)
    return folder


def write(folder: Path, split: str, name: str, game: dict) -> None:
    place = folder / "json_2.1.1" / split / name
    place.mkdir(parents=True)
    (place / "game.tw-pddl").write_text(json.dumps({"solvable": True, "walkthrough": [], **game}))
    (place / "traj_data.json").write_text(json.dumps({"task_type": name.partition("-")[0]}))


def test_games_are_played_that_alfworld_plays(data):
    env = AlfWorld(data=str(data))
    assert env.env_spec.splits == {"train": 1, "valid_seen": 3, "valid_unseen": 3}
    names = [env.tasks["valid_unseen", place].id for place in range(3)]
    assert names == sorted(names)
    assert not [name for name in names if "movable" in name or "Sliced" in name]
    assert env.env_spec.task_set.startswith("sha256:")
    env.close()


@pytest.mark.parametrize("name", ["alfworld-seen", "alfworld-unseen"])
def test_a_suite_is_played(name, data, tmp_path):
    suite = load_suite(name)
    envs = [env.model_copy(update={"tasks": 3, "kwargs": {"data": str(data)}}) for env in suite.envs]
    suite = suite.model_copy(update={"envs": tuple(envs)})
    report = asyncio.run(evaluate(suite, SolverPolicy(), tmp_path, identity="solver"))
    assert [row.success for row in report.rows] == [True] * 3


def test_doing_nothing_is_no_success(data):
    env = AlfWorld(data=str(data))
    env.reset(options={"split": "valid_seen", "task": 0})
    turns = [env.step("look") for _ in range(env.env_spec.max_turns)]
    assert sum(turn[1] for turn in turns) == 0
    assert turns[-1][2] or turns[-1][3]
    assert not turns[-1][4]["success"]
    env.close()


def test_without_its_games_the_command_is_named(tmp_path, monkeypatch):
    info = pytest.importorskip("alfworld.info", reason="alfworld is not installed: pip install 'turngym[alfworld]'")
    monkeypatch.setattr(info, "ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(MissingDependency, match=r"needs ALFWorld's games, and .* has none: alfworld-download"):
        AlfWorld()
    with pytest.raises(ConfigError, match=r"nowhere/json_2\.1\.1 has none"):
        AlfWorld(data="nowhere")


def test_a_file_that_is_no_game(data, tmp_path):
    place = tmp_path / "json_2.1.1" / "train" / "x" / "y"
    place.mkdir(parents=True)
    (place / "game.tw-pddl").write_text('{"solvable": true}')
    env = AlfWorld(data=str(tmp_path))
    with pytest.raises(ConfigError, match=r"game.tw-pddl is no game of ALFWorld: KeyError\('pddl_domain'\)"):
        env.reset(options={"split": "train", "task": 0})
    env.close()
