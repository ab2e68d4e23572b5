"""BabyAI, reasoning-gym and TextArena: their engines are played, and what they say is what is told and paid."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import gymnasium
import pytest
from solving import solve

from agentgym import registry
from agentgym_environments.benchmarks.babyai.env import NO_SOLVER as NO_BOT
from agentgym_environments.benchmarks.reasoning_gym.tasks import LEFT_OUT, NO_SOLVER, UNSTEADY, names
from agentgym_environments.benchmarks.textarena.games import GAMES, SINGLE
from agentgym_environments.benchmarks.textarena.solver import SOLVERS

SPLITS = ("train", "validation", "test")


def openings(env, tasks):
    """Split: the state keys of its first tasks."""
    return {
        split: {env.reset(options={"split": split, "task": task})[1]["state_key"] for task in range(min(tasks, size))}
        for split, size in env.env_spec.splits.items()
    }


def disjoint(found):
    all_keys = [key for keys in found.values() for key in keys]
    return len(set(all_keys)) == len(all_keys)


# BabyAI.


@pytest.mark.parametrize("name", ["babyai", "babyai-pickup", "babyai-boss", "babyai:level=UnlockLocal"])
@pytest.mark.parametrize("split", SPLITS)
def test_babyais_bot_fulfils_the_mission(name, split):
    env = registry.make(name)
    for task in range(5):
        total, info = solve(env, split, task)
        assert (total, info["success"]) == (1.0, True), task


@pytest.mark.envs
def test_babyais_bot_on_every_level():
    """Of those that it is said to solve."""
    registry.make("babyai").close()  # which registers the levels
    levels = sorted({name.split("-")[1] for name in gymnasium.registry if name.startswith("BabyAI-")})
    assert len(levels) > 50
    lost = []
    for level in levels:
        env = registry.make("babyai-boss", level=level)
        if level in NO_BOT:
            assert "solver" not in env.env_spec.capabilities
            continue
        lost += [] if solve(env, "test")[1]["success"] else [level]
    assert len(lost) <= 0.05 * len(levels), lost


def test_babyais_engine_does_the_action_and_only_that():
    env = registry.make("babyai")
    observation, info = env.reset(options={"task": 0})
    assert observation.splitlines()[0] == env.inner.mission
    heading = env.inner.agent_dir
    env.step("turn right")
    assert env.inner.agent_dir == (heading + 1) % 4
    *_, after = env.step("  TURN   LEFT ")
    assert env.inner.agent_dir == heading
    assert (after["valid_action"], after["state_key"]) == (True, info["state_key"])
    text, reward, ended, cut, after = env.step("dance")
    assert text.startswith("not an action; say turn left, turn right")
    assert (reward, ended, cut, after["valid_action"]) == (0, False, False, False)
    assert after["state_key"] == info["state_key"]
    assert env.turn == 3


def test_babyai_ends_by_turns_and_says_no_success():
    env = registry.make("babyai")
    env.reset(options={"task": 0})
    steps = [env.step("turn left") for _ in range(env.env_spec.max_turns)]
    assert [step[3] for step in steps] == [False] * (len(steps) - 1) + [True]
    assert not any(step[1] or step[4]["success"] for step in steps)


def test_babyais_bot_need_not_be_obeyed():
    """After steps of chance it begins anew from what is there."""
    env = registry.make("babyai")
    chance = random.Random(0)
    for task in range(8):
        env.reset(options={"split": "test", "task": task})
        info = {}
        while not env.over:
            *_, info = env.step(chance.choice(env.env_spec.actions[:3]) if env.turn % 3 == 1 else env.solver())
        assert info["success"], task


def test_babyai_prints_nothing_and_its_splits_are_disjoint(capfd):
    assert disjoint(openings(registry.make("babyai:level=GoToLocalS5N2"), 60))
    assert disjoint(openings(registry.make("babyai-boss"), 8))
    assert capfd.readouterr() == ("", "")


# reasoning-gym.

DATASETS = "chain_sum", "countdown", "maze", "letter_counting", "syllogism", "quantum_lock", "ab", "bf"
"""Some that are quick."""


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_stored_answer_is_right_and_others_are_not(dataset, capfd):
    env = registry.make(f"reasoning-gym:dataset={dataset}")
    for split in SPLITS:
        total, info = solve(env, split, 3)
        assert (total, info["success"], info["progress"]) == (1.0, True, pytest.approx(1.0))
        observation, _ = env.reset(options={"split": split, "task": 3})
        next_observation, reward, ended, cut, info = env.step("I cannot know.")
        assert (next_observation, reward, ended, cut, info["success"]) == (observation, 0.0, True, False, False)
        assert info["valid_action"]
    assert capfd.readouterr() == ("", "")


def test_an_answer_is_taken_verbatim():
    """With its capitals and lines: some verifiers want them."""
    env = registry.make("reasoning-gym:dataset=ab")
    env.reset(options={"task": 1})
    answer = env.solver()
    assert answer != answer.lower()
    assert env.step(f"  {answer}\n")[4]["success"]
    env.reset(options={"task": 1})
    assert not env.step(answer.lower())[4]["success"]


def test_no_answer_is_no_action():
    env = registry.make("reasoning-gym")
    observation, _ = env.reset(options={"task": 0})
    next_observation, reward, ended, cut, info = env.step("  ")
    assert next_observation == f"no answer\n{observation}"
    assert (reward, ended, cut, info["valid_action"]) == (0.0, False, True, False)


def test_partial_pays_what_the_verifier_gives():
    """A sum of countdown that is another number is worth something to its verifier, and is no success."""
    for partial in (False, True):
        env = registry.make("reasoning-gym:dataset=countdown", partial=partial)
        env.reset(options={"task": 0})
        _, reward, *_, info = env.step("1 + 1")
        assert info["success"] is False
        assert 0 < info["progress"] < 1
        assert reward == (info["progress"] if partial else 0.0)


def test_levels_make_it_harder():
    def terms(level):
        env = registry.make(f"reasoning-gym:level={level}")
        return sum(env.reset(options={"task": task})[0].count(" + ") for task in range(10))

    assert terms(0) < terms(3) < terms(10)


def test_questions_belong_to_one_split():
    assert disjoint(openings(registry.make("reasoning-gym"), 100))


@pytest.mark.parametrize("dataset", sorted(UNSTEADY))
def test_an_unsteady_data_set_says_that_it_is(dataset):
    spec = registry.get_spec(f"reasoning-gym:dataset={dataset}")
    assert not spec.deterministic
    assert spec.notes.startswith(f"{dataset}: another process has other questions")


@pytest.mark.parametrize("dataset", sorted(NO_SOLVER))
def test_a_data_set_without_right_answers_has_no_solver(dataset):
    env = registry.make(f"reasoning-gym:dataset={dataset}")
    assert env.env_spec.capabilities == ("snapshot",)
    env.reset(options={"task": 0})
    with pytest.raises(NotImplementedError, match="no solver"):
        env.solver()


QUESTIONS = """
import json
from agentgym_environments.benchmarks.reasoning_gym.tasks import names, question, require

require("bf", None)  # which prints nothing from here on
slow = {"knight_swap", "sokoban", "zebra_puzzles", "figlet_font", "group_anagrams", "word_ladder"}
print(json.dumps({name: [question(name, None, "train", task)[1]["question"] for task in range(4)]
                  for name in names() if name not in slow}))
"""


@pytest.mark.envs
def test_unsteady_are_those_whose_questions_follow_the_hash_seed():
    outputs = []
    for seed in "12":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", QUESTIONS], capture_output=True, check=True, env=environment
        )
        outputs.append(json.loads(run.stdout.decode().splitlines()[-1]))
    assert len(outputs[0]) > 90
    other = {name for name in outputs[0] if outputs[0][name] != outputs[1][name]}
    assert other <= UNSTEADY
    assert other  # one question of each need not differ


@pytest.mark.envs
def test_every_data_set_is_an_env():
    assert len(names()) > 95
    assert not set(names()) & set(LEFT_OUT)
    for dataset in names():
        env = registry.make(f"reasoning-gym:dataset={dataset}")
        if dataset not in NO_SOLVER:
            assert solve(env)[1]["success"], dataset
        env.reset(options={"task": 0})
        assert not env.step("I do not know.")[4]["success"], dataset


# TextArena.

QUICK = [game for game in GAMES if not game.startswith("Sudoku")]
GAMES_HERE = [*QUICK, *(pytest.param(game, marks=pytest.mark.envs) for game in GAMES if game not in QUICK)]


@pytest.mark.parametrize("game", GAMES_HERE)
def test_a_game_is_played_alike_and_its_splits_are_disjoint(game):
    env, copy = registry.make(f"textarena:game={game}"), registry.make(f"textarena:game={game}")
    assert list(env.env_spec.splits) == (["train"] if game.startswith(SINGLE) else list(SPLITS))
    assert disjoint(openings(env, 2 if "Guess" in game else 3)) or "Guess" in game
    chance = random.Random(0)
    words = env.env_spec.actions or ("[0 0]", "[1 2 3 4]", "[A B]", "hello", "[A1]", "[reveal 0 0]", "[1 1 1]")
    assert copy.reset(seed=0, options={"task": 0}) == env.reset(seed=0, options={"task": 0})
    while not env.over and env.turn < 12:
        action = chance.choice(words)
        assert json.dumps(copy.step(action)) == json.dumps(env.step(action))


@pytest.mark.parametrize("game", SOLVERS)
def test_a_solver_solves_its_game(game):
    env = registry.make(f"textarena:game={game}")
    for split in env.env_spec.splits:
        for task in range(min(4, env.env_spec.splits[split])):
            total, info = solve(env, split, task)
            assert (total, info["success"], info["progress"]) == (1.0, True, 1.0), (split, task)
    assert set(SOLVERS) <= set(GAMES)


def test_guessed_numbers_of_one_split_are_of_no_other():
    for game, tasks in (("GuessTheNumber-v0", 60), ("GuessTheNumber-v0-hardcore", 100)):
        found = {split: set() for split in SPLITS}
        env = registry.make(f"textarena:game={game}")
        for split in SPLITS:
            for task in range(tasks):
                env.reset(options={"split": split, "task": task})
                found[split].add(env.inner.game_number)
        assert disjoint(found)
        assert all(found.values())


@pytest.mark.parametrize(
    ("game", "action", "move"),
    [
        ("FrozenLake-v0", "I go [Down].", "[down]"),
        ("FrozenLake-v0", "[s]", "[down]"),  # as its rules offer
        ("TowerOfHanoi-v0", "**[a, c]**", "[A C]"),
        ("Secretary-v0", "[Accept]", "[accept]"),
        ("LightsOut-v0", "[1,1]", "[1 1]"),
        ("FrozenLake-v0", "[down] [right]", None),
        ("FrozenLake-v0", "down", None),
        ("2048-v0", "[w]", None),
    ],
)
def test_a_move_may_stand_in_a_sentence(game, action, move):
    env, copy = registry.make(f"textarena:game={game}"), registry.make(f"textarena:game={game}")
    for one in (env, copy):
        one.reset(seed=0, options={"task": 0})
    step = env.step(action)
    assert step[4]["valid_action"] is (move is not None)
    if move:
        assert step == copy.step(move)


def test_textarenas_engine_does_the_action_and_only_that():
    env = registry.make("textarena")
    observation, info = env.reset(options={"task": 0})
    assert observation.startswith("Welcome to Frozen Lake!")
    right = env.solver()
    before = tuple(env.inner.state.game_state["player_pos"])
    *_, after = env.step(right.upper())
    assert after["valid_action"]
    assert tuple(env.inner.state.game_state["player_pos"]) != before
    text, reward, ended, cut, refused = env.step("dance")
    assert text.startswith("say [up], [down], [left], [right]")
    assert (reward, ended, cut, refused["valid_action"]) == (0.0, False, False, False)
    assert refused["state_key"] == after["state_key"] != info["state_key"]
    assert env.turn == 2


def test_a_move_against_the_rules_costs_a_turn_and_ends_nothing():
    env = registry.make("textarena-hanoi")
    _, before = env.reset(options={"task": 0})
    for turn in range(5):
        observation, reward, ended, cut, info = env.step("[C A]")  # there is no disk on C
        assert (reward, ended, cut, info["valid_action"], env.turn) == (0.0, False, False, False, turn + 1)
        assert observation
    assert env.key() == before["state_key"]


def test_a_lost_game_fails_and_pays_only_as_an_option():
    scores = []
    for partial in (False, True):
        env = registry.make("textarena:game=FrozenLake-v0-hardcore", partial=partial)
        env.reset(options={"task": 0})
        chance, total, info = random.Random(1), 0.0, {}
        while not env.over:
            _, reward, *_, info = env.step(chance.choice(env.env_spec.actions))
            total += reward
        assert info["success"] is False
        scores.append((total, info["progress"]))
    assert scores[0] == (0.0, scores[1][1])
    assert scores[1] == (scores[1][1], scores[1][1])


def test_turns_are_the_games_own_or_fewer():
    assert registry.make("textarena-guess").env_spec.max_turns == 10
    assert registry.make("textarena-guess:turns=4").env_spec.max_turns == 4
    env = registry.make("textarena:turns=2")
    env.reset(options={"task": 0})
    assert [env.step("dance")[3] for _ in range(2)] == [False, True]


def test_pythons_chance_is_left_as_it_was_and_nothing_is_fetched(monkeypatch):
    """Games draw from the one generator that everybody has, and fetch lists of words when they are imported."""
    import nltk

    monkeypatch.setattr(nltk, "download", lambda *given: pytest.fail("a game fetched a list of words"))
    random.seed(7)
    before = random.getstate()
    env = registry.make("textarena:game=2048-v0")
    env.reset(options={"task": 0})
    env.step("[up]")
    assert random.getstate() == before
    random.seed(8)
    first = env.snapshot(), env.step("[left]")
    random.seed(9)
    env.restore(first[0])
    assert env.step("[left]") == first[1]
