"""What every shipped turn-based environment owes, whatever its rules."""

from __future__ import annotations

import json

import numpy as np
import pytest

from agentgym import registry
from agentgym.errors import BadRequest
from agentgym_environments.base.text_env import TurnEnv

SPECS = {
    name: registry.get_spec(name)
    for name, target in registry.list_envs().items()
    if target.startswith("agentgym_environments.")
}
ENVS = [name for name, spec in SPECS.items() if spec.inline and spec.family == "text"]
SOLVERS = [name for name in ENVS if "solver" in registry.get_spec(name).capabilities]


def play(env, seed, options, choose):
    """Everything an episode says, as one text."""
    observation, info = env.reset(seed=seed, options=options)
    trajectory, over = [observation, info], False
    while not over:
        *step, info = env.step(choose(info))
        over = step[2] or step[3]
        trajectory += [step, info]
    return json.dumps(trajectory), info


@pytest.mark.parametrize("name", ENVS)
def test_the_spec_says_what_the_class_does(name):
    spec, env = registry.get_spec(name), registry.make(name)
    assert env.env_spec == spec  # nothing in the class contradicts the TOML
    assert spec.id == name
    assert list(spec.splits) in (["train"], ["train", "validation", "test"])


@pytest.mark.parametrize(
    "name", ["oracle", "keydoor", "wordle", "sokoban", "frozenlake", "maze", "navigation", "car-dealer"]
)
def test_a_class_without_a_spec_loads_its_default(name):
    cls = type(registry.make(name))
    assert cls().env_spec == registry.get_spec(name)
    cls().reset(seed=0)


@pytest.mark.parametrize("name", ENVS)
def test_same_task_seed_and_actions_give_the_same_bytes(name):
    for task in range(min(5, registry.get_spec(name).splits["train"])):
        texts = set()
        for _ in range(2):
            random = np.random.default_rng(task)
            words = registry.get_spec(name).actions or ("crane", "xxxxx", "lion", "tale")
            texts.add(play(registry.make(name), task, {"task": task}, lambda info: str(random.choice(words)))[0])  # noqa: B023
        assert len(texts) == 1


@pytest.mark.parametrize("name", SOLVERS)
def test_the_solver_wins_every_task_it_is_given(name):
    env = registry.make(name)
    for split, size in env.env_spec.splits.items():
        for task in range(min(size, 30)):
            _, info = play(env, task, {"split": split, "task": task}, lambda info: env.solver())
            assert info["success"], (split, task)


@pytest.mark.parametrize("name", [name for name in ENVS if len(SPECS[name].splits) == 3])
def test_no_opening_is_in_two_splits(name):
    env = registry.make(name)
    keys = {
        split: {env.reset(options={"split": split, "task": task})[1]["state_key"] for task in range(min(size, 120))}
        for split, size in env.env_spec.splits.items()
    }
    train, validation, test = keys.values()
    assert not train & validation
    assert not train & test
    assert not validation & test


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("form", ["{}.", "**{}**", "`{}`", "“{}!”"])
def test_an_action_may_stand_as_prose_or_markdown_has_it(name, form):
    plain, marked = registry.make(name), registry.make(name)
    for env in (plain, marked):
        env.reset(seed=0, options={"task": 0})
    action = plain.solver()
    assert marked.step(form.format(action.capitalize())) == plain.step(action)
    assert marked.snapshot() == plain.snapshot()


@pytest.mark.parametrize("name", ENVS)
def test_an_invalid_action_costs_a_turn_and_lists_legal_ones(name):
    env = registry.make(name)
    _, before = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("  dance, please!  ")
    assert (terminated, truncated, info["valid_action"], info["success"]) == (False, False, False, False)
    assert info["state_key"] == before["state_key"]
    assert reward == env.invalid_reward
    assert env.turn == 1
    mentions = [action in observation for action in before.get("available_actions", ())]
    assert all(mentions) or (len(mentions) > 12 and any(mentions))  # of very many, an example


@pytest.mark.parametrize("name", ENVS)
def test_capitals_and_spaces_are_forgiven(name):
    env = registry.make(name)
    _, info = env.reset(seed=0)
    action = (info.get("available_actions") or [env.solver()])[0]
    assert env.step(f"  {action.upper().replace(' ', '   ')}\n")[4]["valid_action"] is True


@pytest.mark.parametrize("name", ENVS)
def test_steps_outside_an_episode_are_refused_in_words(name):
    env = registry.make(name)
    for act in (lambda: env.step("up"), env.snapshot):
        with pytest.raises(BadRequest, match="call reset before"):
            act()
    env.reset(seed=0)
    turns = [env.step("dance") for _ in range(env.env_spec.max_turns)]
    assert [bool(step[2] or step[3]) for step in turns] == [False] * (len(turns) - 1) + [True]
    assert turns[-1][3] is not env.out_of_turns_terminates
    with pytest.raises(BadRequest, match="is over: call reset"):
        env.step("up")


@pytest.mark.parametrize("name", ENVS)
def test_a_snapshot_of_any_moment_is_json_and_restores_it(name):
    env, copy = registry.make(name), registry.make(name)
    env.reset(seed=3)
    random = np.random.default_rng(0)
    words, over = env.env_spec.actions or ("crane", "lion"), False
    while not over:
        state = env.snapshot()
        assert json.loads(state)["id"] == name
        action = str(random.choice(words))
        step = env.step(action)
        copy.restore(state)
        assert copy.step(action) == step
        over = step[2] or step[3]
    copy.restore(env.snapshot())
    with pytest.raises(BadRequest, match="is over"):
        copy.step("up")
    assert copy.reset() == env.reset()  # the generator travelled too


def test_a_snapshot_that_is_none_or_anothers_is_refused():
    env = registry.make("keydoor")
    other = registry.make("oracle")
    other.reset(seed=0)
    with pytest.raises(BadRequest, match="is of oracle, not of keydoor"):
        env.restore(other.snapshot())
    for bad in (b"", b"[]", b"\xff", b'{"id": "keydoor"}'):
        with pytest.raises(BadRequest, match="not a snapshot of keydoor"):
            env.restore(bad)


def test_reset_without_a_task_draws_one_from_the_seed():
    env = registry.make("keydoor-5x5")
    one, other = [[env.reset(seed=5)[1]["state_key"], *(env.reset()[1]["state_key"] for _ in range(4))] for _ in "ab"]
    assert one == other
    assert len(set(one)) == 5


def test_reset_refuses_an_option_that_it_does_not_read():
    """Else {"index": 3}, the wire's name, would play a task drawn by chance."""
    env = registry.make("keydoor-5x5")
    with pytest.raises(BadRequest, match="reset of keydoor-5x5 takes the options split and task, not index, level"):
        env.reset(seed=0, options={"level": "hard", "index": 3})
    env.reset(seed=0, options={"split": "test", "task": 3})


@pytest.mark.parametrize(("name", "word"), [("oracle", "gold"), ("frozenlake", "right"), ("blackjack", "hit")])
def test_a_restored_episode_with_a_seed_has_that_seeds_chance(name, word):
    """One state, many futures: the same seed the same one, and a snapshot taken after a reseed keeps it."""
    options = {"make_kwargs": {"is_slippery": True}} if name == "frozenlake" else {}
    env, copy = registry.make(name, **options), registry.make(name, **options)
    env.reset(seed=0)
    if name == "oracle":
        env.step("right")
    state = env.snapshot()

    def future(env, seed):
        env.restore(state)
        env.reseed(seed)
        middle = env.snapshot()
        return middle, json.dumps(env.step(word))

    futures = [future(env, seed) for seed in range(12)]
    assert len({after for _, after in futures}) > 1
    assert [future(copy, seed)[1] for seed in range(12)] == [after for _, after in futures]
    for middle, after in futures:
        copy.restore(middle)
        assert json.dumps(copy.step(word)) == after


def test_every_shipped_env_of_turns_is_a_turn_env():
    assert all(isinstance(registry.make(name), TurnEnv) for name in ENVS)
