"""Task sets: splits, ids, and a hash that says which tasks they are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from agentgym.errors import ConfigError
from agentgym.tasks import Task, TaskSet

MADE = r"""
from agentgym.tasks import Task, TaskSet
hello = Task(id="b", prompt="Gr\u00fc\u00dfe, \u4e16\u754c", setup={"z": [1, 2.5], "a": None}, grader={"x": True})
tasks = [hello, Task(id="a", prompt="?")]
print(TaskSet({"train": tasks, "test": [Task(id="b", prompt="!")]}).content_hash)
"""


def test_tasks_have_a_place():
    tasks = TaskSet({"train": [Task(id="a", prompt="1"), Task(id="b", prompt="2")], "test": [Task(id="a", prompt="3")]})
    assert (len(tasks), tasks.splits, tasks["train", 1].prompt) == (3, {"train": 2, "test": 1}, "2")


@pytest.mark.parametrize(
    ("splits", "problem"),
    [
        ({"train": []}, "no tasks"),
        ({"test": [Task(id="a", prompt="1"), Task(id="a", prompt="2")]}, "two tasks with the id 'a'"),
    ],
    ids=["empty", "twice"],
)
def test_a_wrong_set_says_what_is_wrong(splits, problem):
    with pytest.raises(ConfigError, match=problem):
        TaskSet(splits)


def test_the_hash_depends_on_neither_locale_nor_hash_seed():
    hashes = {
        subprocess.run(
            [sys.executable, "-c", MADE],
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "LC_ALL": locale,
                "PYTHONUTF8": utf8,
                "PYTHONIOENCODING": "utf-8",
            },
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, locale, utf8 in (("1", "C", "0"), ("2", "C.UTF-8", "1"))
    }
    assert hashes == {"sha256:49e6964078b58fa50f972d8167c59b333a9f1312b7f95ffa98ac6f28ce056029\n"}


@pytest.mark.parametrize("change", [{"id": "c"}, {"prompt": "2"}, {"setup": {"a": 1}}, {"grader": {"a": 1}}])
def test_the_hash_is_of_questions_and_answers(change):
    plain = Task(id="a", prompt="1")
    assert TaskSet({"t": [plain]}).content_hash != TaskSet({"t": [plain.model_copy(update=change)]}).content_hash
    assert TaskSet({"t": [plain]}).content_hash != TaskSet({"u": [plain]}).content_hash


def test_only_the_order_of_tasks_matters():
    one, two = Task(id="a", prompt="1", setup={"x": 1, "y": 2}), Task(id="b", prompt="2")
    same = Task(id="a", prompt="1", setup={"y": 2, "x": 1})
    assert TaskSet({"t": [one], "u": [two]}).content_hash == TaskSet({"u": [two], "t": [same]}).content_hash
    assert TaskSet({"t": [one, two]}).content_hash != TaskSet({"t": [two, one]}).content_hash
