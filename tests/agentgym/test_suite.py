"""Suites: the shipped ones fit the shipped environments, and every wrong file is told what is wrong."""

from __future__ import annotations

import pytest

from agentgym import registry
from agentgym.errors import ConfigError
from agentgym.evaluation.suite import Suite, load_suite, shipped_suites
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits
from agentgym.testing import EchoEnv

MINE = """
name = "mine"
attempts = 2
seeds = [1, 0]
metrics = ["success", "pass@3"]
[[env]]
name = "agentgym.testing:EchoEnv"
tasks = [3, 1]
[[env]]
name = "agentgym.testing:EchoEnv"
split = "train"
tasks = 1
attempts = 3
seeds = [7]
max_turns = 5
prompt_format = { window = 2 }
kwargs = { latency_s = 0.0 }
"""


@pytest.fixture
def suite_file(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return str(path)

    return write


def test_episodes_are_every_task_seed_and_attempt_in_order(suite_file):
    suite = load_suite(suite_file(MINE))
    first, second = suite.envs
    name = "agentgym.testing:EchoEnv"
    assert suite.episodes(first) == [EpisodeSpec(name, "test", t, s, a) for t in (1, 3) for s in (0, 1) for a in (0, 1)]
    assert suite.episodes(second) == [EpisodeSpec(name, "train", 0, 7, attempt) for attempt in range(3)]


def test_an_env_changes_the_runs_prompt_format_and_limits(suite_file):
    first, second = load_suite(suite_file(MINE)).envs
    base, limits = PromptFormat(grammar="tagged", invalid_penalty=0.5), Limits(max_turns=9, episode_s=3.0)
    assert first.prompt_format_over(base) == base
    assert first.limits_over(limits) == limits
    assert second.prompt_format_over(base) == PromptFormat(grammar="tagged", invalid_penalty=0.5, window=2)
    assert second.limits_over(limits) == Limits(max_turns=5, episode_s=3.0)


@pytest.mark.parametrize("name", shipped_suites())
def test_every_shipped_suite_fits_its_envs(name):
    suite = load_suite(name)
    assert suite.name == name
    assert suite.description
    for env in () if suite.files or suite.paths else suite.envs:  # what is fetched: tests/environments/test_suites.py
        env.check(registry.get_spec(env.name.partition(":")[0]))  # without arguments nothing is imported


def test_the_shipped_suites_are_these():
    assert {"smoke", "text"} <= set(shipped_suites())
    text = {env.name for env in load_suite("text").envs}
    assert {"oracle", "keydoor", "keydoor-5x5", "keydoor-delayed", "wordle", "sokoban"} <= text
    assert {"frozenlake", "taxi", "blackjack", "cliffwalking"} <= text


def test_an_unknown_name_lists_the_shipped_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"no suite is called 'smok'\. Did you mean smoke\? Shipped suites: .*text"):
        load_suite("smok")
    with pytest.raises(ConfigError, match=r"gone\.toml cannot be read.*Shipped suites: "):
        load_suite(tmp_path / "gone.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("attempts = 2", "atempts = 2", r"mine\.toml is not a suite: atempts: there is no such key"),
        ("max_turns", "max_turn", r"\[\[env\]\] number 2, max_turn: there is no such key"),
        ('name = "mine"', "", "name: it is missing"),
        ("attempts = 2", "attempts = 0", "attempts: should be greater than 0"),
        ("attempts = 2", "attempts = ", "is not TOML"),
        ("seeds = [1, 0]", "seeds = [1, 1]", "seeds must differ"),
        ("seeds = [1, 0]", "seeds = [-1]", "greater than or equal to 0"),
        ("seeds = [7]", "seeds = [7, 7]", "seeds must differ"),
        ("pass@3", "pass@4", "pass@4 needs 4 attempts at a task, and no environment has more than 3"),
        ("pass@3", "pass@0", "no metric 'pass@0'"),
        ("pass@3", "sucess", "no metric 'sucess'; there are success, score"),
        ("tasks = [3, 1]", "tasks = [3, 3]", "none twice"),
        ("tasks = [3, 1]", "tasks = []", "at least one task"),
        ("tasks = [3, 1]", "tasks = 0", "greater than 0"),
        ("window = 2", "windw = 2", "windw"),
        ('split = "train"', "", "is listed twice"),
        ("tasks = 1\n", "", r"a suite: \[\[env\]\] number 2, tasks: it is missing$"),
        (
            '"agentgym.testing:EchoEnv"\nsplit',
            '"http://h/"\nsplit',
            "kwargs are for environments that run in this process",
        ),
    ],
)
def test_each_mistake_has_its_message(suite_file, old, new, message):
    assert old in MINE
    with pytest.raises(ConfigError, match=message):
        load_suite(suite_file(MINE.replace(old, new)))


def test_a_suite_needs_envs_and_cannot_be_changed():
    with pytest.raises(ValueError, match="env"):
        Suite.model_validate({"name": "x", "env": []})
    suite = load_suite("smoke")
    with pytest.raises(ValueError, match="frozen"):
        suite.name = "other"


def test_tasks_and_splits_that_an_env_has_not(suite_file):
    spec = EchoEnv.env_spec
    (env, _) = load_suite(suite_file(MINE.replace("[3, 1]", "[4]"))).envs
    with pytest.raises(ConfigError, match="has 4 tasks in 'test', so there is no task 4"):
        env.check(spec)
    (env, _) = load_suite(suite_file(MINE.replace("tasks = [3, 1]", 'tasks = 1\nsplit = "tset"'))).envs
    with pytest.raises(ConfigError, match="has no split 'tset'; it has train, validation, test"):
        env.check(spec)
