"""Exact values of actions against independent computations, and the file that holds them."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import numpy as np
import pytest

from agentgym import registry
from agentgym.cli.main import main
from agentgym.errors import ConfigError
from agentgym.evaluation.action_values import ActionValues, read_action_values, write_action_values

SLIPPERY = "frozenlake:make_kwargs={is_slippery=true}"


def linear_solve(table: Any, policy: np.ndarray, discount: float) -> np.ndarray:
    """float64[states, actions]: (I - γP)⁻¹ r, and one step more."""
    states, actions = policy.shape
    reward, onward = np.zeros((states, actions)), np.zeros((states, actions, states))
    for s, a in product(range(states), range(actions)):
        for p, s2, r, final in table[s][a]:
            reward[s, a] += p * r
            onward[s, a, s2] += p * (not final)
    matrix = np.eye(states) - discount * np.einsum("sa,sat->st", policy, onward)
    value = np.linalg.solve(matrix, (policy * reward).sum(1))
    return reward + discount * onward @ value


@pytest.mark.parametrize("env", ["frozenlake", SLIPPERY, "cliffwalking"])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_values_are_those_of_a_linear_solve(env, epsilon):
    made: Any = registry.make(env)
    found = made.action_values("train", [3], epsilon=epsilon, discount=0.9)
    table = made.inner.unwrapped.P
    policy = np.full((len(table), 4), 0.25)
    numbers = [int(state.state_key.split()[-1]) for state in found]
    for number, state in zip(numbers, found, strict=True):
        policy[number] = state.probabilities
    expected = linear_solve(table, policy, 0.9)
    np.testing.assert_allclose([state.q for state in found], expected[numbers], atol=1e-10)


@pytest.mark.parametrize("env", ["frozenlake", SLIPPERY])
def test_no_deterministic_policy_beats_the_reference(env):
    """Policies that differ from the reference in any two states are no better anywhere."""
    made: Any = registry.make(env)
    found = made.action_values("train", [5], discount=0.9)
    table = made.inner.unwrapped.P
    best = np.full((len(table), 4), 0.25)
    numbers = [int(state.state_key.split()[-1]) for state in found]
    for number, state in zip(numbers, found, strict=True):
        best[number] = state.probabilities
    value = (best * linear_solve(table, best, 0.9)).sum(1)
    rng = np.random.default_rng(0)
    for _ in range(200):
        other = best.copy()
        for number in rng.choice(numbers, 2, replace=False):
            other[number] = np.eye(4)[rng.integers(4)]
        assert ((other * linear_solve(table, other, 0.9)).sum(1) <= value + 1e-10).all()


def test_values_on_firm_ice_are_powers_of_the_discount():
    found = registry.make("frozenlake").action_values("train", [0, 1], discount=0.5)  # type: ignore[attr-defined]
    logs = [np.log2(q) for state in found for q in state.q if q > 0]
    assert np.allclose(logs, np.round(logs))
    assert {1.0, 0.0} <= {q for state in found for q in state.q}
    for state in found:
        assert state.value == max(state.q)
        assert max(state.advantages or ()) == 0


def test_states_show_what_the_agent_observes():
    made: Any = registry.make("frozenlake")
    first = made.action_values("validation", [2])[0]
    observation, info = made.reset(seed=0, options={"split": "validation", "task": 2})
    assert (observation, info["state_key"]) == (first.state, first.state_key)
    assert first.task == made.env_spec.instructions.strip()
    states = {state.state for state in made.action_values("validation", [2])}
    made.reset(seed=0, options={"split": "validation", "task": 2})
    for _ in range(20):
        observation, _, terminated, _, _ = made.step(made.solver())
        if terminated:
            break
        assert observation in states


def test_kuhn_values_are_those_of_the_literature():
    """Role 0 wins -1/18 at equilibrium, and no action there is better than the policy."""
    found = registry.make("kuhn-poker-self:hands=1").action_values("train", [0])  # type: ignore[attr-defined]
    by_key = {state.state_key: state for state in found}
    assert len(by_key) == 12
    assert sum(by_key[f"{card}:"].value for card in "JQK") / 3 == pytest.approx(-1 / 18)
    for state in found:
        assert state.value == pytest.approx(max(state.q))
    assert by_key["J:b"].q == pytest.approx((-1, -2))  # a J that calls loses the bet too
    assert by_key["K:p"].q == pytest.approx((1, 7 / 5))
    assert by_key["Q:"].q == pytest.approx((-1 / 3, -1 / 2))


def test_kuhn_values_at_random_are_those_of_enumeration():
    """Both play at random: every deal and every line of play, weighed by its probability."""
    found = registry.make("kuhn-poker-self:hands=1").action_values("train", [0], epsilon=1.0)  # type: ignore[attr-defined]
    lines = {"pp": 1 / 4, "pbp": 1 / 8, "pbb": 1 / 8, "bp": 1 / 4, "bb": 1 / 4}
    chips = {"pp": 1, "pbb": 2, "bb": 2}
    for state in found:
        card, history = state.state_key.split(":")
        role = len(history) % 2
        for action, q in zip(state.actions, state.q, strict=True):
            total = weight = 0.0
            for other, (line, p) in product("JQK".replace(card, ""), lines.items()):
                if line.startswith(history + action[0]):
                    wins = "JQK".index(card) > "JQK".index(other)
                    folded = {"bp": 0, "pbp": 1}.get(line)
                    chance = 1 if folded == role else -1 if folded is not None else 0
                    total += p * (chance or (1 if wins else -1) * chips[line])
                    weight += p
            assert q == pytest.approx(total / weight), (state.state_key, action)
    opening = [state.value for state in found if state.state_key.endswith(":")]
    assert sum(v for v in opening if v is not None) / 3 == pytest.approx(1 / 8)


def test_kuhn_against_a_random_opponent_differs():
    found = registry.make("kuhn-poker:hands=1").action_values("train", [0])  # type: ignore[attr-defined]
    q = {state.state_key: state.q for state in found}
    assert q["K:"] == pytest.approx((3 / 2, 3 / 2))
    assert q["Q:b"] == pytest.approx((-1, 0))
    assert "opponent: random" in found[0].reference


@pytest.mark.parametrize(
    ("env", "options", "sentence"),
    [
        ("blackjack", {}, "blackjack has no transition table"),
        ("kuhn-poker-self", {}, "write kuhn-poker-self:hands=1"),
        ("kuhn-poker-self:hands=1", {"discount": 0.9}, "leave the discount out"),
        ("cliffwalking", {"discount": 1.0, "epsilon": 0.0}, ""),
    ],
)
def test_values_that_cannot_be_exact_are_refused(env, options, sentence):
    made: Any = registry.make(env)
    if not sentence:  # every optimal policy ends, so no discount is needed
        assert made.action_values("train", [0], **options)
        return
    with pytest.raises(ConfigError, match=sentence):
        made.action_values("train", [0], **options)


def test_the_file_returns_every_field(tmp_path):
    found = registry.make(SLIPPERY).action_values("train", [0], epsilon=0.1)  # type: ignore[attr-defined]
    extra = {
        "history": [{"observation": "a", "action": "b"}],
        "metadata": {"x": [1, None]},
        "state": "line\u2028separator",
    }
    found.append(ActionValues.model_validate(found[0].model_dump(by_alias=True) | extra))
    write_action_values(found, tmp_path / "new" / "pairs.jsonl")
    assert read_action_values(tmp_path / "new" / "pairs.jsonl") == found


GOOD = {
    "schema": "agentgym.action_values/1", "env": "e", "reference": "r", "state": "s", "actions": ["a", "b"],
    "q": [0, 1],
}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "holds no state: write one with"),
        ("{", r"line 1 is not JSON .*: write each state as one JSON object"),
        ("[]", "line 1 is no JSON object"),
        (json.dumps(GOOD | {"schema": "other/2"}), "has the schema 'other/2': only 'agentgym.action_values/1'"),
        (json.dumps(GOOD | {"q": [1]}), "q has 1 numbers for 2 actions: give one number for each action"),
        (json.dumps(GOOD | {"q": [1, float("nan")]}), "line 1: q.1: Input should be a finite number"),
        (json.dumps(GOOD | {"actions": ["a", "a"]}), "the same action twice: leave one out"),
        (json.dumps(GOOD | {"actions": ["a"], "q": [1]}), "line 1: actions: Tuple should have at least 2 items"),
        (json.dumps(GOOD | {"probabilities": [0.5, 0.6]}), "probabilities are not at least 0 with sum 1: normalize"),
        (json.dumps(GOOD | {"probabilities": [1]}), "probabilities has 1 numbers for 2 actions"),
        (json.dumps(GOOD | {"discount": 1.5}), "line 1: discount: Input should be less than or equal to 1"),
        (json.dumps(GOOD | {"qs": 1}), r"line 1: qs: Extra inputs are not permitted \(fields are env, task"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "q"}), r"line 1: q: Field required \(fields are"),
    ],
)
def test_a_bad_file_is_refused_with_the_line(line, sentence, tmp_path):
    (tmp_path / "bad.jsonl").write_text(line + "\n")
    with pytest.raises(ConfigError, match=sentence):
        read_action_values(tmp_path / "bad.jsonl")


def test_a_missing_or_binary_file_is_refused(tmp_path):
    (tmp_path / "binary").write_bytes(b"\x80\x04\xff")
    for path in (tmp_path / "none.jsonl", tmp_path / "binary", tmp_path):
        with pytest.raises(ConfigError, match=r"cannot be read .*: give a file that `agentgym credit pairs` wrote"):
            read_action_values(path)


def test_the_command_draws_states_of_several_tasks(tmp_path, capsys):
    out = tmp_path / "pairs.jsonl"
    main(["credit", "pairs", SLIPPERY, "--out", str(out), "--tasks", "4", "--states", "12", "--epsilon", "0.2"])
    found = read_action_values(out)
    assert f"12 states of {sum(len(v) for v in values_of(4))}, reference: optimal" in capsys.readouterr().out
    assert len(found) == 12
    assert {state.env for state in found} == {SLIPPERY}
    assert len({state.group for state in found}) > 1
    main(["credit", "pairs", "kuhn-poker-self:hands=1", "--out", str(out)])
    assert len(read_action_values(out)) == 12


def values_of(tasks: int) -> list[list[ActionValues]]:
    made: Any = registry.make(SLIPPERY)
    return [made.action_values("train", [task]) for task in range(tasks)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["wordle"],
            "wordle has no exact values, for it has no transition table and no small game tree: take frozenlake",
        ),
        (["frozenlake", "--split", "dev"], "frozenlake has no split 'dev': take one of train, validation, test"),
        (["frozenlake", "--epsilon", "2"], "--epsilon is a share from 0 to 1, not 2"),
        (["frozenlake", "--discount", "0"], "--discount is above 0 and at most 1, not 0"),
        (["frozenlake", "--tasks", "0"], "--tasks is at least 1"),
    ],
)
def test_the_command_refuses_what_cannot_be(arguments, sentence, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["credit", "pairs", *arguments, "--out", str(tmp_path / "pairs.jsonl")])
    assert ended.value.code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "pairs.jsonl").exists()
