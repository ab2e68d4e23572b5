"""ALFWorld, ScienceWorld and TextWorld: their engines are played, and what they say is what is told and paid."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from running import alive
from solving import solve

from agentgym import registry
from agentgym.env import Env
from agentgym.errors import ConfigError
from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.benchmarks.textworld.tasks import LEVELS, _make
from agentgym_environments.synthetic.kitchen_textworld.tasks import KINDS, PLACES, chore


@pytest.fixture(scope="module")
def games(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("textworld"))


@pytest.fixture(scope="module")
def science() -> Iterator[Env]:
    """One Java engine for all tests that need no other arguments."""
    if shutil.which("java") is None:
        pytest.skip("ScienceWorld runs in Java, which is not installed: apt-get install default-jre-headless")
    env = registry.make("scienceworld:offer=false")
    yield env
    env.close()


# ALFWorld.


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("kitchen-textworld", "train"),
        ("kitchen-textworld:kind=clean", "validation"),
        ("kitchen-textworld:kind=heat", "test"),
        ("kitchen-textworld:kind=cool", "train"),
        ("kitchen-textworld:kind=two", "test"),
        pytest.param("kitchen-textworld-mixed", "test", marks=pytest.mark.envs),
        pytest.param("kitchen-textworld:kind=two,size=large", "train", marks=pytest.mark.envs),
    ],
)
def test_alfworlds_planner_does_the_chore(name, split):
    env = registry.make(name)
    total, info = solve(env, split, 1)
    assert (total, info["success"], info["available_actions"]) == (1.0, True, [])
    assert env.state.won
    env.close()


def test_alfworlds_engine_does_the_action_and_only_that():
    env = registry.make("kitchen-textworld")
    observation, info = env.reset(options={"task": 0})
    assert observation.splitlines()[-1].startswith("Your task is to: put a")
    assert "help" not in info["available_actions"]
    place = next(action for action in info["available_actions"] if action.startswith("go to cabinet 1"))
    text, *_, info = env.step(place.upper())
    assert text.startswith("You arrive at cabinet 1.")
    assert "open cabinet 1" in info["available_actions"]
    before, turn = info["state_key"], env.turn
    text, reward, ended, cut, info = env.step("heat the moon")
    assert text == f"not possible here; you can {', '.join(info['available_actions'])}"
    assert (reward, ended, cut, info["valid_action"], info["state_key"]) == (0.0, False, False, False, before)
    assert env.turn == turn + 1
    text, *_, info = env.step("open cabinet 1")
    assert text.startswith("You open the cabinet 1. The cabinet 1 is open. In it, you see")
    assert info["state_key"] != before
    assert env.step("close cabinet 1")[4]["state_key"] == before
    env.close()


def test_alfworld_cached_commands_answer_as_before():
    """`_remember_commands` keeps what the engine's grammar made of a command: after a hundred steps of chance, what is
    possible is what an engine that parses everything anew calls possible."""
    env, plain = registry.make("kitchen-textworld"), registry.make("kitchen-textworld")
    chance = random.Random(0)
    for one in (env, plain):
        one.reset(options={"split": "test", "task": 2})
    grammar = plain.planner._logic.grammar
    del grammar.derive  # the instance's; the class's own is left
    while not env.over:
        action = chance.choice(env._possible())
        assert env.step(action) == plain.step(action)
    env.close()
    plain.close()


@pytest.mark.parametrize("size", PLACES)
@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_alfworlds_chores_are_not_done_and_can_be(kind, size):
    contents = set()
    for task in range(200):
        made = chore(task_random("test", kind, size, task), kind, size)
        contents.add(made.content)
        there = [name for name, _, place in made.things if name == made.thing and place[0] == made.target]
        assert not there
        assert sum(name == made.thing for name, *_ in made.things) >= (2 if made.kind == "two" else 1)
        assert kind in ("mixed", made.kind)
    assert len(contents) == 200
    assert {split_of(content) for content in contents} == {"train", "validation", "test"}


# TextWorld.


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("textworld", "train"),
        *(
            pytest.param(name, split, marks=pytest.mark.envs)
            for name, split in [
                ("textworld", "test"),
                ("textworld-coin", "validation"),
                ("textworld-cooking", "train"),
                ("textworld:challenge=simple,level=1", "train"),
            ]
        ),
    ],
)
def test_textworlds_own_commands_win(name, split, games):
    env = registry.make(f"{name}{',' if ':' in name else ':'}cache={games}")
    total, info = solve(env, split)
    assert total == pytest.approx(1.0)
    assert (info["success"], info["progress"], info["available_actions"]) == (True, 1.0, [])
    assert env.state.won
    env.close()


def test_textworlds_engine_does_the_action_and_only_that(games):
    env = registry.make(f"textworld:cache={games}")
    observation, info = env.reset(options={"task": 0})
    assert observation.startswith(env.state.objective)
    assert "inventory" in info["available_actions"]
    assert set(info["available_actions"]) == {command.lower() for command in env.state.admissible_commands}
    text, *_, after = env.step("  INVENTORY ")
    assert text.startswith("You are carrying")
    assert (after["valid_action"], after["state_key"]) == (True, info["state_key"])
    text, reward, ended, cut, after = env.step("fly to the moon")
    assert text == f"not possible here; you can {', '.join(after['available_actions'])}"
    assert (reward, ended, cut, after["valid_action"]) == (0.0, False, False, False)
    assert after["state_key"] == info["state_key"]
    assert env.turn == 2
    env.close()


def test_textworlds_games_are_compiled_once(games):
    env = registry.make(f"textworld:cache={games}")
    env.reset(options={"task": 0})
    before = {path: os.stat(os.path.join(games, path)).st_mtime_ns for path in os.listdir(games)}
    assert {os.path.splitext(path)[1] for path in before} == {".z8", ".json"}  # and no folder of a half-made one
    other = registry.make(f"textworld:cache={games}")
    assert other.reset(options={"task": 0}) == env.reset(options={"task": 0})
    assert {path: os.stat(os.path.join(games, path)).st_mtime_ns for path in os.listdir(games)} == before
    env.close()
    other.close()


def test_textworld_says_where_games_cannot_be_kept(tmp_path):
    (tmp_path / "file").write_text("no folder")
    env = registry.make(f"textworld:cache={tmp_path / 'file'}")
    with pytest.raises(ConfigError, match=r"compiled games are kept in .*file"):
        env.reset(options={"task": 0})


@pytest.mark.parametrize(("challenge", "level"), [("treasure_hunter", 3)])
def test_textworlds_games_are_their_tasks_alone(challenge, level):
    """The same task has the same game, and belongs to its split."""

    def content(split, task):
        game, _ = _make(challenge, level, split, task)
        return "\n".join([game.objective, *sorted(map(str, game.world.facts))])

    assert level <= LEVELS[challenge]
    found = {split: content(split, 1) for split in ("train", "validation", "test")}
    assert {split: split_of(text) for split, text in found.items()} == {split: split for split in found}
    assert content("train", 1) == found["train"]


# ScienceWorld.


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_scienceworlds_own_solution_solves_a_variation(science, split):
    total, info = solve(science, split, 1)
    assert total == pytest.approx(1.0)
    assert (info["success"], info["progress"]) == (True, 1.0)
    assert science.engine.server.getCompleted()


def test_scienceworlds_variations_are_the_engines_and_disjoint(science):
    found = science.variations
    assert {split: len(ones) for split, ones in found.items()} == registry.get_spec("scienceworld").splits
    all_variations = [one for ones in found.values() for one in ones]
    assert len(set(all_variations)) == len(all_variations)


def test_scienceworlds_engine_does_the_action_and_only_that(science):
    observation, info = science.reset(options={"task": 0})
    assert observation.startswith("Task Description:\nYour task is to find a(n) animal.")
    text, *_, after = science.step("Teleport to KITCHEN")
    assert text == "You teleport to the kitchen."
    assert after["state_key"] != info["state_key"]
    text, reward, ended, cut, after = science.step("dance")
    assert (text, reward, ended, cut) == ("No known action matches that input.", 0.0, False, False)
    assert (after["valid_action"], science.turn) == (False, 2)


def test_a_question_of_scienceworld_is_answered_by_number(science):
    """Asked which of several doors is meant, the engine takes a number; any other word is lost."""
    science.reset(options={"task": 0})
    _, *_, before = science.step("teleport to kitchen")
    text, *_, question = science.step("open door")
    assert text.startswith("Ambiguous request: Please enter the number")
    assert (question["valid_action"], question["state_key"] != before["state_key"]) == (True, True)
    assert science._possible == ["0", "1", "2"]
    state = science.snapshot()
    text, *_, info = science.step("1")
    assert text in ("The door is already open.", "The door is now open.")
    assert info["valid_action"]
    science.restore(state)
    text, *_, info = science.step("look around")
    assert text.startswith("Unknown action.")
    assert (info["valid_action"], info["state_key"]) == (False, before["state_key"])
    assert science.step("look around")[4]["valid_action"]


def test_a_failed_experiment_of_scienceworlds_ends(science):
    """Focusing on the wrong thing can't be mended: the engine's score stays at -1, and its own API ends there."""
    science.reset(options={"task": 0})
    _, gained, *_ = science.step("teleport to kitchen")
    _, reward, ended, cut, info = science.step("focus on table")
    assert science.engine.server.getScore() == -1
    assert (ended, cut, info["success"], info["progress"]) == (True, False, False, 0.0)
    assert gained + reward == pytest.approx(0.0)


def test_scienceworlds_chance_is_the_tasks(science):
    def transcript():
        steps = [science.reset(seed=0, options={"split": "test", "task": 3})]
        for action in ("teleport to outside", "look around", "wait", "look around", "dance", "inventory"):
            steps.append(science.step(action))
        return json.dumps(steps)

    assert transcript() == transcript()


@pytest.mark.envs
@pytest.mark.parametrize("simplifications", ["easy,openDoor"])
def test_scienceworlds_simplifications_are_the_engines(simplifications):
    with pytest.raises(ConfigError, match=r"no simplification '(nothing|openDoor)'; it has easy, noElectricalAction"):
        registry.make("scienceworld", simplifications=simplifications)


@pytest.mark.envs
def test_an_unknown_experiment_ends_its_engine():
    with pytest.raises(ConfigError, match="no task 'cold-fusion'; it has boil, "):
        registry.make("scienceworld:task=cold-fusion")


@pytest.mark.envs
@pytest.mark.parametrize("task", ["boil", "power-component"])
def test_scienceworlds_other_experiments(task):
    env = registry.make(f"scienceworld:task={task},offer=false")
    total, info = solve(env, "train", 0)
    env.close()
    assert (info["success"], total) == (True, pytest.approx(1.0))


@pytest.mark.envs
def test_scienceworld_offers_possible_actions_of_its_spec():
    env = registry.make("scienceworld")
    assert env.env_spec == registry.get_spec("scienceworld")
    _, info = env.reset(options={"task": 0})
    assert "teleport to kitchen" in info["available_actions"]
    assert env.step("teleport to kitchen")[4]["valid_action"]
    *_, info = env.step("open door")
    assert info["available_actions"] == ["0", "1", "2"]
    process = env.engine.process
    env.close()
    assert process.poll() is not None


@pytest.mark.envs
def test_an_engine_ends_with_its_process():
    """Even one that is killed leaves no Java behind."""
    code = """
from agentgym import registry
print(registry.make("scienceworld").engine.process.pid, flush=True)
import os; os.kill(os.getpid(), 9)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pid = int(run.stdout)
    deadline = time.monotonic() + 30
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)
