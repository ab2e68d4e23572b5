"""Baselines: solvers, chance, agents that only know how actions are written, and lazy policies."""

from __future__ import annotations

import asyncio
import re

import numpy as np

from agentgym import registry
from agentgym.cli.main import main
from agentgym.clients.client import connect
from agentgym.env import Env
from agentgym.evaluation.baselines import any_value, baselines, by_column, example_actions
from agentgym.spec import EnvSpec, ToolSpec


class PaysForForm(Env):
    """What the third column is there to find: any well-formed call is paid."""

    env_spec = EnvSpec(
        id="pays-for-form",
        description="d",
        instructions="i",
        tools=(
            ToolSpec(
                name="send", parameters={"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}
            ),
        ),
        splits={"train": 4},
        max_turns=2,
        info_keys=("success",),
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "send it to bob", {"success": False}

    def step(self, action):
        paid = isinstance(action, dict) and isinstance(action["arguments"]["to"], str)
        return "sent", float(paid), True, False, {"success": paid}


def echo(step, rng):
    for _ in range(2):
        step = yield step.observation


def nothing(step, rng):
    yield "nothing"


class PaysLaziness(Env):
    """What the last column is there to find: whoever repeats what was said is paid."""

    env_spec = EnvSpec(
        id="pays-laziness",
        description="d",
        instructions="i",
        splits={"train": 4},
        max_turns=3,
        info_keys=("success",),
    )
    lazy_policies = {"say nothing": nothing, "repeat what was said": echo}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.words = ["one", "two", "two"]
        return self.words[0], {"success": False}

    def step(self, action):
        good = action == self.words.pop(0)
        paid = good and not self.words
        return self.words[0] if self.words else "over", float(paid), paid or not good, False, {"success": paid}


def measure(name, **options):
    return asyncio.run(_measure(name, **options))


async def _measure(name, **options):
    async with connect(name) as connection:

        async def open_session():
            return connection.session()

        found = baselines(open_session, connection.spec, lazy_policies=registry.lazy_policies(name), **options)
        table = by_column([one async for one in found])
        cells = {(split, column): one for split, columns in table.items() for column, one in columns.items()}
        return cells, await example_actions(open_session, connection.spec)


def test_a_solver_solves_what_chance_and_form_do_not():
    found, _ = measure("sokoban", episodes=10)
    assert {policy for _, policy in found} == {"solver", "random", "format only"}
    for split in ("train", "validation", "test"):
        assert found[split, "solver"].cell() == "100"
        assert found[split, "format only"].success.estimate <= 0.1
    assert measure("sokoban", episodes=10)[0] == found


def test_unlisted_actions_come_from_other_tasks_solutions():
    found, words = measure("wordle-mini", episodes=5)
    assert all(re.fullmatch("[a-z]{4}", word) for word in words)
    assert found["test", "random"].episodes == found["test", "format only"].episodes == 5


def test_one_task_is_played_with_many_seeds():
    found, _ = measure("oracle", episodes=40)
    assert found["train", "random"].episodes == 40
    assert 0 < found["train", "random"].success.estimate < 1


def test_an_env_that_pays_for_form_is_found_out():
    found, _ = measure(f"{__name__}:PaysForForm")
    assert found["train", "format only"].cell() == "100"
    assert ("train", "solver") not in found


def test_the_best_lazy_policy_is_shown():
    found, _ = measure(f"{__name__}:PaysLaziness")
    assert found["train", "laziest"].cell() == "100: repeat what was said"
    assert found["train", "laziest"].score_error == 0
    assert registry.lazy_policies("http://127.0.0.1:1/envs/sokoban") == {}


def test_arguments_fit_their_schema():
    schema = {
        "type": "object",
        "properties": {
            "who": {"enum": ["ann", "bob"]},
            "when": {"type": "integer", "minimum": 3, "maximum": 5},
            "tags": {"type": "array", "items": {"type": "boolean"}},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "cost": {"type": "number"},
        },
        "required": ["who", "when"],
    }
    drawn = [any_value(schema, np.random.default_rng(seed)) for seed in range(200)]
    assert {value["who"] for value in drawn} == {"ann", "bob"}
    assert {value["when"] for value in drawn} == {3, 4, 5}
    assert {type(value.get("note")) for value in drawn} == {str, type(None)}
    assert all(isinstance(tag, bool) for value in drawn for tag in value.get("tags", []))
    assert all(isinstance(value.get("cost", 0.0), float) for value in drawn)
    assert any("tags" not in value for value in drawn)


def test_the_command_prints_a_line_of_markdown_a_split(capsys):
    main(["envs", "baselines", "keydoor", "--episodes", "5"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| id | split | episodes | solver | random | format only | laziest |"
    assert [line.split(" | ")[:4] for line in lines[2:]] == [
        ["| `keydoor`", split, "5", "100"] for split in ("train", "validation", "test")
    ]
