"""AppWorld's adapter on a package of the same interface, which this test makes: tasks, code, completion and reward."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from agentgym import registry
from agentgym.conformance.run import check_env
from agentgym.errors import EnvironmentCrashed, MissingDependency
from agentgym.evaluation.evaluate import evaluate
from agentgym.evaluation.suite import load_suite
from agentgym.rollouts.policy import ScriptedPolicy
from agentgym_environments.benchmarks.appworld.env import MAX_CHARACTERS, AppWorld

STAND_IN = """
import contextlib, io, json, os, types

ROOT = ""
PERSON = {"first_name": "Ann", "last_name": "Ray", "email": "ann.ray@example.com", "phone_number": "5550100"}

def update_root(root):
    global ROOT
    ROOT = root

def load_task_ids(dataset_name="train"):
    with open(os.path.join(ROOT, "data", "datasets", dataset_name + ".txt")) as file:
        return file.read().split()

class AppWorld:
    def __init__(self, task_id, experiment_name):
        with open(os.path.join(ROOT, "data", "tasks", task_id, "specs.json")) as file:
            specs = json.load(file)
        self.task = types.SimpleNamespace(
            instruction=specs["instruction"], supervisor=PERSON, datetime="2023-05-18 12:00:00"
        )
        self.expected, self.given = specs["answer"], []
        supervisor = types.SimpleNamespace(complete_task=lambda answer=None: self.given.append(answer))
        self.names = {"apis": types.SimpleNamespace(supervisor=supervisor)}
        self.task_id = task_id
        os.makedirs(os.path.join(experiment_name, "tasks", task_id, "dbs"), exist_ok=True)

    def execute(self, code):
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(code, self.names)
        except Exception as error:
            return f"Execution failed. Traceback:\\n{error!r}"
        return printed.getvalue() or "Execution successful."

    def task_completed(self):
        return bool(self.given)

    def evaluate(self):
        return types.SimpleNamespace(success=self.given[-1:] == [self.expected])

    def close(self):
        pass
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A folder with AppWorld's data of two splits, and an interpreter that has the stand-in."""
    folder = tmp_path_factory.mktemp("appworld")
    package = folder / "packages" / "appworld"
    (package / "apps" / "supervisor").mkdir(parents=True)
    for place in (package / "apps", package / "apps" / "supervisor"):
        (place / "__init__.py").touch()
    (package / "__init__.py").write_text(STAND_IN)
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder / "packages"}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (folder / "data" / "datasets").mkdir(parents=True)
    for split, names in {"train": ["aaa_1", "aaa_2"], "test_normal": ["bbb_1", "bbb_2"]}.items():
        (folder / "data" / "datasets" / f"{split}.txt").write_text("\n".join(names))
        for number, name in enumerate(names):
            (folder / "data" / "tasks" / name).mkdir(parents=True)
            specs = {"instruction": f"What is 7 times {number}?", "answer": 7 * number}
            (folder / "data" / "tasks" / name / "specs.json").write_text(json.dumps(specs))
    return folder


@pytest.fixture
def env(root):
    env = AppWorld(root=str(root))
    yield env
    env.close()


def test_tasks_are_those_of_the_package(env):
    assert env.env_spec.splits == {"train": 2, "test_normal": 2}
    assert [env.tasks["test_normal", place].id for place in range(2)] == ["bbb_1", "bbb_2"]
    assert env.env_spec.task_set.startswith("sha256:")


def test_code_is_executed_and_variables_stay(env):
    observation, _ = env.reset(options={"split": "test_normal", "task": 1})
    assert "Task from Ann Ray (email ann.ray@example.com, phone 5550100), at 2023-05-18 12:00:00" in observation
    assert observation.endswith("What is 7 times 1?")
    assert env.step("number = 7\nprint(number)")[0] == "7\n"
    observation, reward, terminated, truncated, info = env.step("```python\nprint(number * 2)\n```")
    assert (observation, reward, terminated, truncated, info["valid_action"]) == ("14\n", 0.0, False, False, True)
    observation, _, _, _, info = env.step("no Python at all")
    assert observation.startswith("Execution failed")
    assert not info["valid_action"]


@pytest.mark.parametrize(("answer", "paid"), [(7, 1.0), (8, 0.0)])
def test_its_own_evaluation_is_the_reward(env, answer, paid):
    env.reset(options={"split": "train", "task": 1})
    _, reward, terminated, _, info = env.step(f"apis.supervisor.complete_task(answer={answer})")
    assert (reward, terminated, info["success"]) == (paid, True, paid == 1.0)


def test_at_the_last_turn_what_is_there_is_evaluated(root):
    spec = registry.get_spec("appworld").model_copy(update={"max_turns": 2})
    env = AppWorld(spec, root=str(root))
    env.reset(options={"split": "train", "task": 0})
    assert env.step("print(1)")[1:4] == (0.0, False, False)
    assert env.step("print(2)")[1:4] == (0.0, True, False)
    env.close()


def test_a_long_output_is_cut(env):
    env.reset(options={"split": "train", "task": 0})
    observation = env.step(f"print('x' * {MAX_CHARACTERS + 10})")[0]
    assert observation == "x" * MAX_CHARACTERS + "\n[11 more characters]"


def test_code_reaches_neither_requests_nor_answers(env):
    env.reset(options={"split": "train", "task": 0})
    code = 'import os, sys\nos.write(1, b\'{"result": {"success": true}}\\n\')\nprint(repr(sys.stdin.read()))'
    assert env.step(code)[0] == "''\n"


def test_a_process_that_ends_is_an_error_and_no_reward(env):
    env.reset(options={"split": "train", "task": 0})
    with pytest.raises(EnvironmentCrashed, match="AppWorld has ended"):
        env.step("import os\nos._exit(3)")
    assert env.reset(options={"split": "train", "task": 1})[0].endswith("What is 7 times 1?")


def test_it_keeps_the_rules_of_envs(root):
    short = registry.get_spec("appworld").model_copy(update={"max_turns": 3})
    findings = check_env(lambda: AppWorld(short, root=str(root)), tasks=2)
    assert not [str(finding) for finding in findings if not finding.ok]


def test_a_suite_is_played(root, tmp_path):
    suite = load_suite("appworld-test-normal")
    (entry,) = suite.envs
    assert (entry.split, entry.tasks) == ("test_normal", 168)
    entry = entry.model_copy(update={"tasks": 2, "kwargs": {"root": str(root)}})
    policy = ScriptedPolicy(["<action>apis.supervisor.complete_task(answer=7)</action>"])
    report = asyncio.run(evaluate(suite.model_copy(update={"envs": (entry,)}), policy, tmp_path, identity="seven"))
    assert [row.success for row in report.rows] == [False, True]


def test_what_is_missing_is_named_with_its_command(root, tmp_path):
    command = r"python3\.11 -m venv .* && bin/appworld install && bin/appworld download data"
    with pytest.raises(MissingDependency, match=rf"there is no .*/bin/python: {command}"):
        registry.make("appworld", root=str(tmp_path))
    with pytest.raises(MissingDependency, match=rf"has no package appworld: {command}"):
        registry.make("appworld", root=str(tmp_path), python=sys.executable)
    with pytest.raises(MissingDependency, match=rf"data has none of its tasks: {command}"):
        registry.make("appworld", root=str(tmp_path), python=str(root / "bin" / "python"))
