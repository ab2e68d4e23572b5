"""OpenEnv's client against our server."""

from __future__ import annotations

import json
from typing import Any

from agentgym.env import Action, Env
from agentgym.spec import EnvSpec, ToolSpec
from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.web.run import serve_in_thread


class Counter(Env):
    env_spec = EnvSpec(
        id="counter",
        description="Count with a tool.",
        instructions="Call add.",
        tools=(ToolSpec(name="add", description="Add.", parameters={"type": "object"}),),
        max_turns=20,
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._count = 0
        return "0", {}

    def step(self, action: Action) -> Any:
        assert isinstance(action, dict)
        self._count += action["arguments"]["by"]
        return str(self._count), 0.0, False, False, {}


def expected(task: int) -> list[object]:
    env = EchoEnv()
    observation, _ = env.reset(seed=3, options={"split": "train", "task": task})
    records: list[object] = [[observation, None, False]]
    done = False
    while not done:
        observation, reward, terminated, truncated, _ = env.step(str(observation).rsplit(" ", 1)[-1])
        done = terminated or truncated
        records.append([observation, reward, done])
    first = [records[0][0], False]  # type: ignore[index]
    return [*records, [f"mine-{task}", len(records) - 1], "VALIDATION_ERROR", "EXECUTION_ERROR", first]


def test_its_client_plays_our_env(run_upstream, our_server):
    assert json.loads(run_upstream("client_script.py", our_server)) == [expected(task) for task in range(4)]


def test_its_tool_client_calls_our_tools(run_upstream):
    with serve_in_thread(create_app({"counter": Counter})) as url:
        result = json.loads(run_upstream("tools_script.py", url))
    assert result == {"tools": ["add"], "schema": {"type": "object"}, "called": ["2", "5"], "count": "5"}
