"""BrowserGym's benchmarks on a small stand-in of its packages; tests/interop has the real ones."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from agentgym import registry
from agentgym.errors import ConfigError, MissingDependency
from agentgym.evaluation.suite import load_suite
from agentgym_environments.benchmarks.browsergym.tasks import VARIABLES, benchmark_of

STAND_IN = Path(__file__).with_name("browsergym_stand_in")
SUITES = ("assistantbench", "visualwebarena", "webarena", "workarena-l1")


@pytest.fixture
def python(tmp_path, monkeypatch) -> str:
    """An interpreter that has the stand-in, and none of the sites' variables."""
    for variable in (variable for names in VARIABLES.values() for some in names for variable in some):
        monkeypatch.delenv(variable, raising=False)
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{STAND_IN}" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def sites(monkeypatch) -> None:
    for variable in (*VARIABLES["webarena"][0], *VARIABLES["workarena"][1]):
        monkeypatch.setenv(variable, "http://site/")


def test_splits_and_limits_are_those_of_the_package(python, sites):
    env = registry.make("webarena", python=python)
    assert env.env_spec.splits == {"train": 2, "test": 2}
    assert env.env_spec.max_turns == 4
    assert env.env_spec.task_set.startswith("sha256:")
    assert env.env_spec.instructions.endswith("noop()\nsend_msg_to_user(text: str)")
    task = env.benchmark.tasks["test", 1]  # type: ignore[attr-defined]
    assert (task.id, task.metadata["sites"], task.metadata["depends_on"]) == ("webarena.4", "map", "webarena.3")


def test_a_split_called_valid_is_validation(python):
    assert benchmark_of(python, "assistantbench").tasks.splits == {"validation": 1, "test": 1}


def test_each_seed_of_a_task_is_a_task(python, sites):
    env = registry.make("workarena-l1", python=python)
    assert env.env_spec.splits == {"train": 3, "test": 3}
    goals = [env.reset(options={"split": "test", "task": task})[0].splitlines()[0] for task in range(3)]
    env.close()
    assert goals == ["Task: Double 102.", "Task: Double 7.", "Task: Double 102."]
    tasks = env.benchmark.tasks  # type: ignore[attr-defined]
    assert [tasks["test", n].id for n in (0, 2)] == [
        "workarena.servicenow.all-menu#0",
        "workarena.servicenow.all-menu#2",
    ]


def test_an_answer_goes_by_the_chat_and_the_chat_is_shown(python, sites):
    env = registry.make("webarena", python=python)
    first, _ = env.reset(options={"split": "test", "task": 0})
    tabs = "Tabs:\n 0: Home http://site/\n*1: Double http://site/double"
    assert first == f"Task: Double 2.\n{tabs}\nRootWebArea 'page 2'"
    wrong, reward, terminated, _, info = env.step('send_msg_to_user("5")')
    assert wrong == f"Task: Double 2.\n{tabs}\nChat:\nassistant: 5\nRootWebArea 'page 2'"
    assert (reward, terminated, info["success"], info["valid_action"]) == (0.0, False, False, True)
    refused, *_, info = env.step("click('3')")
    assert refused.startswith("error: no action: click('3')\nTask: ")
    assert not info["valid_action"]
    _, reward, terminated, _, info = env.step('send_msg_to_user("4")')
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    other, _ = env.reset(options={"split": "train", "task": 0})
    env.close()
    assert "Double 1." in other
    assert "Chat:" not in other


def test_a_goals_picture_is_below_the_screenshot(python, sites):
    env = registry.make("webarena", python=python, screenshot=True)
    observation, _ = env.reset(options={"split": "train", "task": 1})
    env.close()
    assert env.observation_space.contains(observation)
    expected = np.full((6, 8, 3), 255, np.uint8)
    expected[:4, :6], expected[4:] = 3, 9
    assert np.array_equal(observation["image"], expected)
    assert "Double 3." in observation["text"]
    assert "base64" not in observation["text"]


def test_without_its_sites_a_benchmark_names_the_variables(python, monkeypatch):
    monkeypatch.setenv("WA_MAP", "http://map/")
    with pytest.raises(
        MissingDependency, match=r"webarena needs sites .*: set WA_SHOPPING, .*, WA_HOMEPAGE in"
    ) as raised:
        registry.make("webarena", python=python)
    assert "WA_MAP" not in str(raised.value)
    with pytest.raises(MissingDependency, match=r"SNOW_INSTANCE_URL, .*, SNOW_INSTANCE_PWD or SNOW_INSTANCE_POOL"):
        registry.make("workarena-l1", python=python)


def test_a_package_that_is_missing_is_named(python):
    with pytest.raises(
        MissingDependency, match=r"needs browsergym-visualwebarena, .*pandas tqdm, then visualwebarena:python="
    ):
        registry.make("visualwebarena", python=python)


def test_an_interpreter_and_a_benchmark_that_are_not_there(python, tmp_path):
    with pytest.raises(ConfigError, match=r"none is no Python interpreter \(No such file or directory\)"):
        registry.make("webarena", python=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="no benchmark 'webarena_x'; it has assistantbench, webarena, workarena_l1"):
        registry.make("webarena", python=python, benchmark="webarena_x")


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_plays_the_tasks_that_are_published(name):
    suite = load_suite(name)
    assert suite.status == "format-tested"
    assert all((suite.source, suite.licence, suite.metric, suite.published))
    for env in suite.envs:
        spec = registry.get_spec(env.name)
        assert env.tasks == spec.splits[env.split]
        assert env.kwargs["python"].endswith(f"browsergym-{spec.kwargs['benchmark'].partition('_')[0]}/bin/python")
        assert env.kwargs["python"].removesuffix("/bin/python") in suite.download
