"""tau2-bench's adapter on a package of the same interface that this test makes: tasks, tools, talk, reward."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from agentgym import registry
from agentgym.conformance.run import check_env
from agentgym.env import ToolCall
from agentgym.errors import ConfigError, EnvironmentCrashed, MissingDependency
from agentgym.evaluation.evaluate import evaluate
from agentgym.evaluation.suite import load_suite
from agentgym.rollouts.policy import ScriptedPolicy
from agentgym_environments.benchmarks.tau2.env import DOMAINS, Tau2

LOGURU = """
class Logger:
    def remove(self):
        pass

    def add(self, sink, level, format):
        self.error = sink

logger = Logger()
"""
REGISTRY = """
import json

class Task:
    def __init__(self, id):
        self.id = id

    def model_dump_json(self):
        return json.dumps({"id": self.id})

class Tool:
    def __init__(self, name, **properties):
        parameters = {"type": "object", "properties": properties, "title": "parameters"}
        function = {"name": name, "description": f"{name} of the shop", "parameters": parameters}
        self.openai_schema = {"type": "function", "function": function}

class Domain:
    def get_tools(self):
        return [Tool("cancel_order", order={"type": "string"}), Tool("transfer_to_human_agents")]

    def get_policy(self):
        return "Cancel only what the user asks for."

SPLITS = {"train": ["0", "1"], "test": ["2"], "base": ["0", "1", "2"], "other": ["9"]}

class Registry:
    def get_tasks_loader(self, name):
        return lambda split="base": [Task(id) for id in SPLITS[split]]

    def get_task_splits_loader(self, name):
        return lambda: SPLITS

    def get_env_constructor(self, name):
        return lambda solo_mode=False: Domain()

registry = Registry()
"""
GYM_AGENT = '''
import json
from loguru import logger

class AgentGymEnv:
    """A user who wants the order with the number of the task canceled."""

    def __init__(self, domain, task_id, max_steps=100, user_llm=None, user_llm_args=None):
        self.wanted, self.left, self.canceled = task_id, max_steps, []
        self.llm, self.url = user_llm, (user_llm_args or {}).get("api_base")

    def reset(self):
        if self.url == "http://broken":
            logger.error("Orchestrator error: no answer")
            return "", {"simulation_run": {}}
        return f"user: Please cancel order {self.wanted}. I am {self.llm}.", {"simulation_run": {}}

    def step(self, action):
        self.left -= 2
        try:
            call = json.loads(action)
        except ValueError:
            if action == "break":
                logger.error("Orchestrator error: gone")
                return "", 0.0, True, False, {"simulation_run": {}}
            if action == "fail":
                return self.answer("", "user_error")
            over = action.startswith("Good bye")
            return self.answer("user: ###STOP###" if over else f"user: You said {action}", "user_stop" if over else "")
        if call["name"] == "done":
            return self.answer("", "agent_stop")
        if call["name"] == "cancel_order" and list(call["arguments"]) == ["order"]:
            self.canceled.append(call["arguments"]["order"])
            return self.answer("tool: canceled", "")
        return self.answer("tool: Error: wrong arguments", "")

    def answer(self, text, reason):
        reason = reason or ("max_steps" if self.left <= 0 else "")
        reward = float(reason.endswith("stop") and self.canceled == [self.wanted])
        run = json.dumps({"termination_reason": reason}) if reason else {}
        return text, reward, bool(reason), False, {"simulation_run": run}
'''


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A folder with an interpreter that has the stand-in."""
    folder = tmp_path_factory.mktemp("tau2")
    packages = folder / "packages"
    (packages / "tau2" / "gym").mkdir(parents=True)
    (packages / "loguru.py").write_text(LOGURU)
    (packages / "tau2" / "__init__.py").touch()
    (packages / "tau2" / "registry.py").write_text(REGISTRY)
    (packages / "tau2" / "gym" / "__init__.py").touch()
    (packages / "tau2" / "gym" / "gym_agent.py").write_text(GYM_AGENT)
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return folder


@pytest.fixture
def env(root):
    env = Tau2(root=str(root), base=True, user="http://user", model="customer")
    yield env
    env.close()


def call(tool: str, **arguments: str) -> ToolCall:
    return {"name": tool, "arguments": arguments}


def test_tasks_tools_and_policy_are_those_of_the_domain(env):
    assert env.env_spec.splits == {"base": 3}
    assert [tool.name for tool in env.env_spec.tools] == ["say", "done", "cancel_order", "transfer_to_human_agents"]
    assert env.env_spec.instructions.endswith("Policy:\n\nCancel only what the user asks for.")
    assert [env.tasks["base", place].id for place in range(3)] == ["0", "1", "2"]


def test_train_and_test_divide_the_tasks(root):
    env = Tau2(root=str(root))
    assert env.env_spec.splits == {"train": 2, "test": 1}
    assert env.tasks["test", 0].id == "2"


def test_the_model_at_the_url_plays_the_user(env):
    assert env.reset(options={"split": "base", "task": 2})[0] == "user: Please cancel order 2. I am openai/customer."
    assert env.step(call("say", text="Surely"))[0] == "user: You said Surely"


@pytest.mark.parametrize(("order", "paid"), [("1", 1.0), ("2", 0.0)])
@pytest.mark.parametrize("last", [call("say", text="Good bye"), call("done")])
def test_the_evaluators_reward_comes_at_the_end(env, order, paid, last):
    env.reset(options={"split": "base", "task": 1})
    assert env.step(call("cancel_order", order=order))[:4] == ("tool: canceled", 0.0, False, False)
    _, reward, terminated, truncated, info = env.step(last)
    assert (reward, terminated, truncated, info["success"]) == (paid, True, False, paid == 1.0)


@pytest.mark.parametrize("action", ["hello", call("no_such_tool"), call("say"), {"name": "say", "arguments": "hello"}])
def test_what_is_no_call_costs_a_turn_and_changes_nothing(env, action):
    _, before = env.reset(options={"split": "base", "task": 0})
    observation, reward, terminated, _, info = env.step(action)
    assert observation.startswith("error: no such call; the tools are cancel_order, done, say")
    assert (reward, terminated, info["valid_action"]) == (0.0, False, False)
    assert info["state_key"] == before["state_key"]


def test_a_conversation_without_an_end_is_truncated(root):
    spec = registry.get_spec("tau2").model_copy(update={"max_turns": 2})
    env = Tau2(spec, root=str(root))
    env.reset(options={"split": "train", "task": 0})
    assert env.step(call("say", text="One"))[2:4] == (False, False)
    assert env.step(call("say", text="Two"))[2:4] == (False, True)
    env.close()


def test_a_failure_of_the_user_is_an_error_and_no_reward(env, root):
    env.reset(options={"split": "base", "task": 0})
    with pytest.raises(EnvironmentCrashed, match="has broken off: Orchestrator error: gone"):
        env.step(call("say", text="break"))
    assert env.reset(options={"split": "base", "task": 0})[0].startswith("user: Please cancel order 0")
    with pytest.raises(EnvironmentCrashed, match=r"has broken off \(user_error\): no error was logged"):
        env.step(call("say", text="fail"))
    broken = Tau2(root=str(root), user="http://broken", model="customer")
    with pytest.raises(EnvironmentCrashed, match="has not begun: Orchestrator error: no answer"):
        broken.reset()
    broken.close()


def test_it_keeps_the_rules_of_envs(root):
    short = registry.get_spec("tau2").model_copy(update={"max_turns": 3})
    findings = check_env(lambda: Tau2(short, root=str(root)), tasks=2)
    assert not [str(finding) for finding in findings if not finding.ok]


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_suite_is_played(domain, root, tmp_path):
    suite = load_suite(f"tau2-{domain}")
    (entry,) = suite.envs
    assert (entry.split, entry.kwargs["domain"], suite.attempts) == ("base", domain, 4)
    kwargs = {**entry.kwargs, "root": str(root)}
    entry = entry.model_copy(update={"tasks": 2, "kwargs": kwargs})
    policy = ScriptedPolicy(["One moment.", json.dumps(call("cancel_order", order="1")), json.dumps(call("done"))])
    report = asyncio.run(evaluate(suite.model_copy(update={"envs": (entry,)}), policy, tmp_path, identity="one"))
    assert [row.success for row in report.rows] == [False] * 4 + [True] * 4


def test_what_is_missing_is_named_with_its_command(tmp_path):
    command = r"git clone https://github\.com/sierra-research/tau2-bench .* && uv sync --extra gym"
    with pytest.raises(MissingDependency, match=rf"there is no .*/python: {command}"):
        registry.make("tau2", root=str(tmp_path))
    with pytest.raises(MissingDependency, match=rf"has no package tau2 with tau2\.gym: {command}"):
        registry.make("tau2", python=sys.executable)


def test_a_version_without_the_split_is_refused(root, tmp_path):
    python = tmp_path / "python"
    old = (root / "packages" / "tau2" / "registry.py").read_text().replace('"base": [', '"train+test": [')
    (tmp_path / "tau2").mkdir()
    for name in ("__init__.py", "gym"):
        (tmp_path / "tau2" / name).symlink_to(root / "packages" / "tau2" / name)
    (tmp_path / "tau2" / "registry.py").write_text(old)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    with pytest.raises(MissingDependency, match=r"its retail has no split 'base', but train, test, train\+test, other"):
        Tau2(python=str(python), base=True)


def test_wrong_arguments_are_refused():
    with pytest.raises(ConfigError, match="domain is one of retail, airline, telecom, not 'bank'"):
        registry.make("tau2", domain="bank")
    with pytest.raises(ConfigError, match="give both user and model"):
        registry.make("tau2", user="http://127.0.0.1:8000/v1")
