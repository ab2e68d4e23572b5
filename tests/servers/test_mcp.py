"""OpenEnv's JSON-RPC: over HTTP, on a socket of its own, inside /ws, and tools as actions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agentgym.env import Action, Env
from agentgym.errors import BadRequest
from agentgym.spec import EnvSpec, ToolSpec
from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.web.run import serve_in_thread

ADD = {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]}


class Counter(Env):
    """An environment whose actions are tools: `add` counts up, ten ends the episode."""

    env_spec = EnvSpec(
        id="counter",
        description="Count to ten with a tool.",
        instructions="Call add until the counter is ten.",
        tools=(ToolSpec(name="add", description="Add to the counter.", parameters=ADD), ToolSpec(name="look")),
        max_turns=20,
        inline=True,
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._count = 0
        return "0", {}

    def step(self, action: Action) -> Any:
        if isinstance(action, dict) and action["name"] == "add":
            by = action["arguments"].get("by")
            if not isinstance(by, int):
                raise BadRequest("`by` is an integer")
            self._count += by
        ended = self._count >= 10
        return str(self._count), float(ended), ended, False, {"count": self._count}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve_in_thread(create_app({"counter": Counter, "echo": EchoEnv}, max_sessions=8)) as url:
        yield url


def rpc(url: str, method: str, **params: Any) -> Any:
    reply = httpx.post(f"{url}/mcp", json={"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
    assert reply.status_code == 200
    assert reply.json()["id"] == 7
    return reply.json()


def live(url: str) -> int:
    return httpx.get(f"{url}/health").json()["sessions"]


def test_tools_are_listed_under_both_names_of_their_schema(url):
    tools = rpc(url, "tools/list")["result"]["tools"]
    assert [tool["name"] for tool in tools] == ["add", "look"]
    assert tools[0]["inputSchema"] == tools[0]["input_schema"] == ADD


def test_a_call_without_a_session_is_made_in_a_fresh_env(url):
    for _ in range(2):
        result = rpc(url, "tools/call", name="add", arguments={"by": 3})["result"]
        assert result["data"] == "3"
    assert result["content"][0]["text"] == "3"
    assert (result["is_error"], result["meta"]) == (False, None)
    assert result["structured_content"]["info"] == {"count": 3}
    assert live(url) == 0


def test_calls_in_a_session_add_up(url):
    session_id = rpc(url, "openenv/session/create")["result"]["session_id"]
    for expected in ("4", "8", "12"):
        result = rpc(url, "tools/call", name="add", arguments={"by": 4}, session_id=session_id)["result"]
        assert result["data"] == expected
    assert (result["structured_content"]["done"], result["structured_content"]["reward"]) == (True, 1.0)
    after = rpc(url, "tools/call", name="look", session_id=session_id)["error"]
    assert (after["code"], after["data"]) == (-32603, {"code": "OUT_OF_ORDER"})
    assert rpc(url, "tools/list", session_id=session_id)["result"]["tools"]
    assert rpc(url, "openenv/session/close", session_id=session_id)["result"] == {
        "session_id": session_id,
        "closed": True,
    }
    assert rpc(url, "tools/call", name="look", session_id=session_id)["error"]["code"] == -32602


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"[" * 5000, -32700),
        (b"{}", -32600),
        (b"[]", -32600),
        (b"null", -32600),
        (b'{"jsonrpc": "1.0", "method": "tools/list", "id": 1}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1}', -32600),
        (b'{"jsonrpc": "2.0", "method": "tools/list", "params": [], "id": 1}', -32600),
        (b'{"jsonrpc": "2.0", "method": "tools/list", "id": 1, "more": 1}', -32600),
        (b'{"jsonrpc": "2.0", "method": "tools/list", "id": {"a": 1}}', -32600),
        (b'{"jsonrpc": "2.0", "method": "resources/list", "id": 1}', -32601),
        (b'{"jsonrpc": "2.0", "method": "tools/call", "id": 1}', -32602),
        (b'{"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "fly"}, "id": 1}', -32602),
        (b'{"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "add", "arguments": 3}, "id": 1}', -32602),
        (b'{"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "add"}, "id": 1}', -32602),
        (b'{"jsonrpc": "2.0", "method": "tools/list", "params": {"session_id": "no"}, "id": 1}', -32602),
        (b'{"jsonrpc": "2.0", "method": "tools/list", "params": {"session_id": 5}, "id": 1}', -32602),
        (b'{"jsonrpc": "2.0", "method": "openenv/session/close", "id": 1}', -32602),
    ],
)
def test_requests_that_are_wrong(url, body, code):
    reply = httpx.post(f"{url}/mcp", content=body)
    assert reply.status_code == 200
    error = reply.json()["error"]
    assert (reply.json()["jsonrpc"], error["code"]) == ("2.0", code)
    assert error["message"]
    assert live(url) == 0


def test_an_env_of_words_has_no_tools(url):
    error = rpc(f"{url}/envs/echo", "tools/list")["error"]
    assert error["code"] == -32603
    assert "does not support MCP" in error["message"]


def test_no_room(url):
    ids = [rpc(url, "openenv/session/create")["result"]["session_id"] for _ in range(8)]
    error = rpc(url, "tools/call", name="look")["error"]
    assert (error["code"], error["data"]) == (-32000, {"active_sessions": 8, "max_sessions": 8})
    for session_id in ids:
        rpc(url, "openenv/session/close", session_id=session_id)


def test_a_socket_of_tools_has_a_session_of_its_own(dial, url):
    wire = dial(f"{url}/mcp")
    call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "add", "arguments": {"by": 2}}, "id": "a"}
    assert [wire.ask(call)["result"]["data"] for _ in range(3)] == ["2", "4", "6"]
    assert wire.ask("{")["error"]["code"] == -32700
    assert wire.ask(b"x")["error"]["code"] == -32700
    unnumbered = wire.ask({"jsonrpc": "2.0", "method": "tools/list"})
    assert unnumbered["id"] is None
    assert live(url) == 1
    wire.connection.close()
    for _ in range(200):
        if live(url) == 0:
            break
        time.sleep(0.01)
    assert live(url) == 0


def test_tools_inside_an_episode(dial, url):
    wire = dial(f"{url}/ws")
    wire.ask({"type": "reset"})
    request = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "add", "arguments": {"by": 2}}, "id": 1}
    answer = wire.ask({"type": "mcp", "data": request})
    assert (answer["type"], answer["data"]["result"]["data"]) == ("mcp", "2")
    assert wire.ask({"type": "state"})["data"]["step_count"] == 1
    plain = wire.ask({"type": "step", "data": {"tool": "add", "arguments": {"by": 1}}})
    assert plain["data"]["observation"]["text"] == "3"


def test_tools_as_actions(dial, url):
    wire = dial(f"{url}/ws")
    wire.ask({"type": "reset"})
    listed = wire.ask({"type": "step", "data": {"type": "list_tools"}})["data"]
    assert [tool["name"] for tool in listed["observation"]["tools"]] == ["add", "look"]
    assert (listed["reward"], listed["done"]) == (None, False)
    call = {"type": "call_tool", "tool_name": "add", "arguments": {"by": 10}}
    wrong = wire.ask({"type": "step", "data": {**call, "arguments": {"by": "ten"}}})["data"]["observation"]
    assert (wrong["result"], wrong["error"]["error_type"]) == (None, "invalid_args")
    unknown = wire.ask({"type": "step", "data": {"tool_name": "fly"}})["data"]["observation"]
    assert unknown["error"]["error_type"] == "tool_not_found"
    refused = wire.ask({"type": "step", "data": {**call, "by": 1}})["data"]
    assert (refused["code"], refused["errors"][0]["loc"]) == ("VALIDATION_ERROR", ["by"])
    data = wire.ask({"type": "step", "data": call})["data"]
    assert (data["reward"], data["done"]) == (1.0, True)
    assert data["observation"]["tool_name"] == "add"
    assert data["observation"]["error"] is None
    assert data["observation"]["result"]["data"] == "10"
