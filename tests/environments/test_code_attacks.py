"""No submission earns the reward of a programming task by anything but right answers."""

from __future__ import annotations

import json

import pytest

from agentgym_environments.benchmarks.code import grader
from agentgym_environments.tasks.code import code_tasks

from .code_attacks import ATTACKS, NODE, TASKS


def task_of(record: dict):
    [tasks] = code_tasks([json.loads(json.dumps(record))], "stand-in").values()
    return tasks[0]


@pytest.mark.parametrize("name", TASKS)
def test_the_tasks_of_these_attacks_are_admitted(name):
    assert grader.admit(task_of(TASKS[name])).problem == ""


@pytest.mark.parametrize(
    ("name", "attack"),
    [
        pytest.param(name, attack, marks=() if name == ("humaneval", "mbpp")[place % 2] else pytest.mark.every)
        for place, attack in enumerate(ATTACKS)
        for name in ("humaneval", "mbpp", "weak", "nodes")
    ],
)
def test_an_attack_earns_nothing(name, attack):
    """By turns on a task of either benchmark."""
    earns_nothing(name, attack)


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name.startswith(("raise_", "forged_"))])
def test_an_exception_ends_no_loop_of_the_tests(attack):
    earns_nothing("weak", attack)


@pytest.mark.parametrize("attack", [name for name in ATTACKS if "equal" in name or "node" in name])
def test_an_object_of_the_submission_equals_nothing(attack):
    earns_nothing("nodes", attack)


def earns_nothing(name: str, attack: str) -> None:
    answer = f"{NODE if name == 'nodes' else ''}{ATTACKS[attack]}"
    verdict = grader.judge(task_of(TASKS[name]), answer, timeout_s=1.0)
    assert not verdict.passed
    assert verdict.why
