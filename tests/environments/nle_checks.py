"""What test_adapters_nle.py runs in an interpreter that has NLE, and no pytest: `python nle_checks.py NAME`."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

import agentgym_environments.benchmarks.nle.env as nle
from agentgym import registry
from agentgym.errors import BadRequest, ConfigError
from agentgym_environments.benchmarks.nle.solver import STEPS


def refusal(kind: type[Exception], call: Callable[[], object]) -> str:
    """What the error says that `call` must raise."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


ARGUMENTS = {
    "task=fly": "no task 'fly'; it has staircase, descend, gold",
    "task=gold,goal=-5": "goal is a number above 0, not -5",
    "task=gold,goal=lots": "goal is a number, not 'lots'",
    "character=mon-xyz-neu-mal": "character is such as 'mon-hum-neu-mal', not 'mon-xyz-neu-mal'",
    "character=5": "not 5",
}


def check_the_explorer_finds_staircases():
    env = registry.make("nle")
    assert {split: len(draws) for split, draws in nle.staircases().items()} == env.env_spec.splits
    for split in env.env_spec.splits:
        for task in range(8):
            env.reset(seed=0, options={"split": split, "task": task})
            total = 0.0
            while not env.over:
                _, reward, *_, info = env.step(env.solver())
                total += reward
            assert (total, info["success"], info["progress"]) == (1.0, True, 1.0), (split, task)
            assert int(env.inner.last_observation[env.inner._internal_index][4]) == 1  # NetHack's own: on stairs
    env.close()


def check_the_game_does_the_action_and_only_that():
    env = registry.make("nle")
    observation, info = env.reset(options={"task": 0})
    assert "Agent the Candidate" in observation
    assert "St:" in observation
    here = env._explorer.here
    word = env.solver()
    *_, after = env.step(word.upper())
    right, below = STEPS[word]
    assert env._explorer.here == (here[0] + right, here[1] + below)
    assert after["state_key"] != info["state_key"]
    text, reward, ended, cut, refused = env.step("dance")
    assert text.startswith("not an action; say north, south")
    assert (reward, ended, cut, refused["valid_action"]) == (0.0, False, False, False)
    assert (refused["state_key"], env.turn) == (after["state_key"], 2)
    env.close()


def check_every_word_is_a_key():
    env = registry.make("nle-descend")
    assert set(env.env_spec.actions) == set(nle.KEYS)
    for word in nle.KEYS:
        env.reset(options={"task": 1})
        assert env.step(word)[4]["valid_action"], word
    env.close()


def check_same_actions_same_bytes_and_snapshots():
    env, copy = registry.make("nle-gold"), registry.make("nle-gold")
    for task in range(3):
        assert env.reset(seed=0, options={"task": task}) == copy.reset(seed=0, options={"task": task})
        chance = random.Random(task)
        for turn in range(60):
            action = chance.choice((*env.env_spec.actions, "dance"))
            if turn % 20 == 7:
                state = env.snapshot()
                copy.reset(options={"task": 9})
                copy.restore(state)
            step = env.step(action)
            assert json.dumps(copy.step(action)) == json.dumps(step), (task, turn)
            if env.over:
                break
    other = registry.make("nle-gold:goal=40,character=val-dwa-law-fem")
    assert "other arguments" in refusal(BadRequest, lambda: other.restore(env.snapshot()))


def check_gold_pays_by_the_piece():
    env = registry.make("nle-gold:goal=1")
    assert "solver" not in env.env_spec.capabilities
    chance, paid = random.Random(0), 0
    for task in range(40):
        env.reset(options={"task": task})
        while not env.over and env.turn < 60:
            start = int(env.view["blstats"][nle.GOLD])
            _, reward, ended, _, info = env.step(chance.choice(env.env_spec.actions[:16]))
            more = int(env.view["blstats"][nle.GOLD]) - start
            assert (reward > 0) == (more > 0 and reward == 1.0), (task, env.turn)
            if more > 0:
                assert (reward, ended, info["success"]) == (1.0, True, True)
                paid += 1
    assert paid > 0
    env.close()


def check_going_down_is_success_where_that_is_the_task():
    """The explorer's way to the staircase, and down."""
    env = registry.make("nle-descend")
    won = 0
    for task in nle.staircases()["train"][:12]:
        env.reset(options={"split": "train", "task": task})
        while not env.over and env.turn < 200:
            standing = int(env.inner.last_observation[env.inner._internal_index][4])
            *_, info = env.step("down" if standing else env._explorer.next(env.view))
        won += env.success
        if env.success:
            assert int(env.view["blstats"][nle.DEPTH]) == 2
            assert info["progress"] == 1.0
    assert won >= 10
    env.close()


def check_arguments_that_mean_nothing_are_refused():
    for arguments, message in ARGUMENTS.items():
        assert message in refusal(ConfigError, lambda: registry.make(f"nle:{arguments}"))  # noqa: B023


def check_another_character_has_levels_of_its_own_and_no_solver():
    env = registry.make("nle:character=val-dwa-law-fem")
    assert env.env_spec.splits == registry.get_spec("nle").splits
    assert "solver" not in env.env_spec.capabilities
    observation, _ = env.reset(options={"task": 0})
    assert "Valkyrie" in observation
    env.close()


def check_splits_are_disjoint():
    for name in ("nle", "nle-descend"):
        env = registry.make(name)
        keys = [
            env.reset(options={"split": split, "task": task})[1]["state_key"]
            for split in env.env_spec.splits
            for task in range(20)
        ]
        assert len(set(keys)) == len(keys)
        env.close()


def check_the_episode_in_the_readme():
    text = Path(nle.__file__).with_name("README.md").read_text()
    found = re.search(r"<!-- episode: (\S+) (\S+) (\d+) -->\n```text\n(.*?)\n```", text, re.DOTALL)
    assert found is not None
    name, split, task, printed = found.groups()
    env = registry.make(name)
    observation, _ = env.reset(seed=0, options={"split": split, "task": int(task)})
    lines, total = [observation], 0.0
    while not env.over:
        action = env.solver()
        observation, reward, *_ = env.step(action)
        total += reward
        lines.append(f"> {action}")
    assert "\n".join([*lines, observation, f"reward {total:g}"]) == printed  # the first screen and the last


if __name__ == "__main__":
    globals()[sys.argv[1]]()
