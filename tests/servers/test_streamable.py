"""MCP by its own transport: the protocol's official client against a served environment, and what it must refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from mcp import Client, MCPError

from agentgym import registry
from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.env_server.mcp import HEADER, VERSIONS
from agentgym_servers.web.run import serve_in_thread

INITIALIZE = {
    "protocolVersion": VERSIONS[1],
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    app = create_app({"tools-one": registry.env_factory("tools-one"), "echo": EchoEnv}, max_sessions=4)
    with serve_in_thread(app) as url:
        yield url


def post(url: str, method: str, headers: dict[str, str] | None = None, **params: Any) -> httpx.Response:
    return httpx.post(url, json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, headers=headers)


def sessions(url: str) -> int:
    return httpx.get(f"{url}/health").json()["sessions"]


def test_the_official_client_plays_a_task_to_the_reward(url):
    env: Any = registry.make("tools-one")
    opening, _ = env.reset(seed=0, options={"split": "test", "task": 5})

    async def play() -> None:
        async with Client(f"{url}/mcp?split=test&index=5&seed=0") as client:
            assert client.instructions == f"{env.env_spec.instructions.strip()}\n\n{opening}"
            listed = (await client.list_tools()).tools
            assert [tool.name for tool in listed] == [tool.name for tool in env.env_spec.tools]
            assert sessions(url) == 1
            wrong: Any = await client.call_tool(listed[2].name, {"no": 1})
            assert wrong.is_error
            observation, *_ = env.step({"name": listed[2].name, "arguments": {"no": 1}})
            assert wrong.content[0].text == observation
            while not env.over:
                call = env.solver()
                observation, reward, terminated, _, _ = env.step(call)
                result: Any = await client.call_tool(call["name"], call["arguments"])
                assert (result.content[0].text, result.is_error) == (observation, False)
                assert result.structured_content["reward"] == reward
            assert (result.structured_content["reward"], terminated) == (1.0, True)
            with pytest.raises(MCPError, match="the episode ended after"):
                await client.call_tool(listed[0].name, {})
            with pytest.raises(MCPError, match="has no tool 'nope'"):
                await client.call_tool("nope", {})

    asyncio.run(play())
    assert sessions(url) == 0  # the client has ended its session


def test_a_known_version_is_spoken(url):
    for version, spoken in ((VERSIONS[1], VERSIONS[1]), ("1999-01-01", VERSIONS[0])):
        reply = post(f"{url}/mcp", "initialize", **{**INITIALIZE, "protocolVersion": version})
        assert reply.json()["result"]["protocolVersion"] == spoken
        own = {HEADER: reply.headers[HEADER]}
        note = httpx.post(f"{url}/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=own)
        assert (note.status_code, note.content) == (202, b"")
        assert post(f"{url}/mcp", "ping", own).json()["result"] == {}
        assert httpx.delete(f"{url}/mcp", headers=own).status_code == 204
        for gone in (post(f"{url}/mcp", "ping", own), httpx.delete(f"{url}/mcp", headers=own)):
            assert gone.status_code == 404
        assert "initialize again" in post(f"{url}/mcp", "tools/list", own).json()["message"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/mcp?split=nowhere", "has no split 'nowhere'"),
        ("/mcp?index=first", "the query chooses the episode: index: "),
        ("/envs/echo/mcp", "its actions are text, not tools"),
    ],
)
def test_what_cannot_be_begun_says_why_and_leaves_no_session(url, path, message):
    before = sessions(url)
    reply = post(url + path, "initialize", **INITIALIZE)
    assert message in reply.json()["error"]["message"]
    assert HEADER not in reply.headers
    assert sessions(url) == before


def test_there_is_no_stream_to_get(url):
    assert httpx.get(f"{url}/mcp").status_code == 405
