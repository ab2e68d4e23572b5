"""BrowserGym's tasks as environments: `make interop` installs BrowserGym beside this environment."""

from __future__ import annotations

import os
import re
import signal
import sys
import time

import pytest
from running import in_session

from agentgym import registry
from agentgym.conformance.run import check_env
from agentgym.errors import EnvironmentCrashed, MissingDependency
from agentgym_environments.backends.browser.browser import find_program
from agentgym_environments.benchmarks.browsergym.tasks import VARIABLES, benchmark_of

VARIABLE = "AGENTGYM_BROWSERGYM_PYTHON"
pytestmark = pytest.mark.skipif(not find_program(), reason="no Chromium: apt-get install chromium-headless-shell")


@pytest.fixture(scope="session")
def python() -> str:
    """An interpreter that has BrowserGym."""
    interpreter = os.environ.get(VARIABLE)
    if not interpreter:
        pytest.skip(f"{VARIABLE} names no interpreter that has BrowserGym: run `make interop`")
    return interpreter


def test_without_browsergym_one_sentence_says_how_to_get_it():
    with pytest.raises(MissingDependency, match=r"pip install browsergym-core.*, then browsergym:python="):
        registry.make("browsergym", python="/bin/false")
    assert registry.get_spec("browsergym").family == "web"


@pytest.mark.parametrize(
    ("task", "packages"),
    [
        ("webarena.12", "browsergym-core browsergym-webarena,"),
        ("visualwebarena.3", "browsergym-core browsergym-visualwebarena,"),
        ("weblinx.1", "browsergym-core weblinx-browsergym,"),
        ("openended", "browsergym-core,"),
    ],
)
def test_a_missing_package_is_that_of_the_task(task, packages):
    with pytest.raises(MissingDependency, match=f"the task {task} needs browsergym-core, .*pip install {packages}"):
        registry.make("browsergym", python="/bin/false", task=task)


def test_a_task_of_another_benchmark_names_its_package(tmp_path):
    """An interpreter that has the core and MiniWoB only."""
    for package in ("core", "miniwob"):
        (tmp_path / "browsergym" / package).mkdir(parents=True)
        (tmp_path / "browsergym" / package / "__init__.py").touch()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    with pytest.raises(MissingDependency, match=r"the task webarena\.12 needs browsergym-webarena, which"):
        registry.make("browsergym", python=str(python), task="webarena.12")
    registry.make("browsergym", python=str(python), task="openended").close()


def test_a_page_is_solved_by_a_click_and_its_seed_comes_again(python):
    env = registry.make("browsergym", python=python, task="miniwob.click-button")
    first, info = env.reset(seed=0, options={"split": "test", "task": 4})
    goal = re.findall(r'Task: Click on the "(.*)" button', first)[0]
    wrong, _, terminated, _, info = env.step("click('no such')")
    assert (terminated, info["valid_action"]) == (False, False)
    assert wrong.startswith("error: ")
    bid = re.findall(rf"\[(\d+)\] button '{goal}'", first)[0]
    _, reward, terminated, _, info = env.step(f"click('{bid}')")
    assert (reward > 0, terminated, info["success"]) == (True, True, True)
    assert env.reset(seed=0, options={"split": "test", "task": 4})[0] == first
    process = env._child  # type: ignore[attr-defined]
    os.killpg(process.pid, signal.SIGKILL)
    with pytest.raises(EnvironmentCrashed, match="has ended"):
        env.step("noop()")
    env.close()


def test_it_keeps_the_rules_of_envs(python):
    short = registry.get_spec("browsergym").model_copy(update={"max_turns": 3})
    findings = check_env(lambda: registry.make("browsergym", spec=short, python=python), tasks=1)
    assert not [str(finding) for finding in findings if not finding.ok]


def test_tasks_open_differently(python):
    """What the rules cannot know of one task."""
    env = registry.make("browsergym", python=python)
    first, other = (env.reset(seed=0, options={"split": "train", "task": task})[0] for task in (0, 1))
    env.close()
    assert first != other


def test_closing_ends_its_processes(python):
    env = registry.make("browsergym", python=python)
    env.reset(seed=0)
    pid = env._child.pid  # type: ignore[attr-defined]
    env.close()
    for _ in range(50):  # killed is not yet buried
        if not (left := in_session(pid)):
            break
        time.sleep(0.1)
    assert not left


@pytest.mark.parametrize("name", ["webarena", "visualwebarena", "assistantbench"])
def test_the_official_list_has_the_published_tasks(python, monkeypatch, name):
    for variable in (variable for names in VARIABLES.get(name, ()) for variable in names):
        monkeypatch.setenv(variable, "http://site/")
    benchmark, spec = benchmark_of(python, name), registry.get_spec(name)
    assert (benchmark.tasks.splits, benchmark.max_turns) == (spec.splits, spec.max_turns)
    assert "send_msg_to_user(text: str)" in benchmark.actions


def test_a_benchmark_is_played_with_its_own_actions(python):
    """WebArena's environment with a list of tasks that runs here."""
    env = registry.make("webarena", benchmark="miniwob_tiny_test", python=python, screenshot=True)
    assert (env.env_spec.splits, env.env_spec.max_turns) == ({"train": 4}, 5)
    first, _ = env.reset(seed=0, options={"split": "train", "task": 0})
    assert 'Close the dialog box by clicking the "x".' in first["text"]
    assert env.observation_space.contains(first)
    assert first["image"].std() > 0
    refused, *_, info = env.step('send_msg_to_user("done")')  # no action of MiniWoB's
    assert not info["valid_action"]
    bid = re.findall(r"\[(\d+)\] button 'Close'", refused["text"])[0]
    _, reward, terminated, _, info = env.step(f"click('{bid}')")
    env.close()
    assert (reward, terminated, info["success"]) == (1.0, True, True)
