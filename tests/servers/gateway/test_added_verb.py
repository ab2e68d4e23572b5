"""A verb that the module of an environment adds: one line in the protocol's table, and the environment's method."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import sys
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect as open_socket

from agentgym.clients.client import connect
from agentgym.clients.gym import RemoteEnv
from agentgym.clients.server_process import server_process
from agentgym.errors import EnvironmentCrashed, UnknownSession
from agentgym.protocol import VERBS
from agentgym.session import LocalSession

from .conftest import gateway_in_thread

MODULE = """
from agentgym.protocol import TEXT, VERBS, query
from agentgym.testing import EchoEnv

VERBS["plan"] = query("plan", capability="solver", field="plan", value=TEXT)


class Planner(EchoEnv):
    env_spec = EchoEnv.env_spec.model_copy(update={"id": "planner", "inline": INLINE})

    def plan(self):
        return f"say {self.solver()}" if self._turns == 0 else 7
"""
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(params=[True, False], ids=["inline", "worker process"])
def module(request, tmp_path, monkeypatch):
    """The module `planner`, imported here and importable in a server. The table is restored at the end."""
    (tmp_path / "planner.py").write_text(MODULE.replace("INLINE", str(request.param)))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(VERBS, "plan", VERBS["hint"])
    monkeypatch.delitem(sys.modules, "planner", raising=False)
    yield importlib.import_module("planner")
    del sys.modules["planner"]


def ask(url: str, task: int = 0) -> tuple[int, dict, dict]:
    """The verb over HTTP and over the socket, of a new session."""
    with httpx.Client(base_url=url, timeout=60) as http:
        session_id = http.post("/reset", json={"index": task, "episode_id": url}).json()["session_id"]
        reply = http.post("/plan", json={"session_id": session_id})
        with open_socket(url.replace("http", "ws", 1) + "/ws?ext=1", proxy=None) as socket:
            socket.recv(timeout=20)
            socket.send(json.dumps({"id": 1, "type": "plan", "data": {"session_id": session_id}}))
            frame = json.loads(socket.recv(timeout=20))
        assert http.post("/plan", json={"session_id": "no"}).json()["code"] == UnknownSession.code
        assert http.post("/plan", json={}).status_code == 422
    assert reply.json().pop("session_id") == session_id
    return reply.status_code, reply.json(), frame


def test_an_added_verb_needs_no_other_edit(module, tmp_path):
    async def by_client(url: str, wire: str) -> str:
        async with connect(url, wire=wire) as client:
            session = client.session()
            await session.reset(options={"task": 0})
            plan = await session.query("plan")
            await session.step("apple")
            with pytest.raises(EnvironmentCrashed, match="plan returned 7"):
                await session.query("plan")
            return plan

    async def local() -> str:
        session = LocalSession(module.Planner())
        await session.reset(options={"task": 0})
        return await session.query("plan")

    assert asyncio.run(local()) == "say apple"
    with server_process(["planner:Planner"]) as server, gateway_in_thread(tmp_path) as gateway:
        assert gateway.register("planner", url=server).status_code == 201
        for url in (server, f"{gateway.url}/envs/planner"):
            status, reply, frame = ask(url)
            assert (status, reply["plan"]) == (200, "say apple")
            assert frame == {"id": 1, "type": "reply", "data": reply}
            assert [asyncio.run(by_client(url, wire)) for wire in ("http", "socket")] == ["say apple"] * 2
        described = httpx.get(f"{server}/openapi.json").json()["components"]["schemas"]["PlanReply"]
        assert set(described["properties"]) == {"session_id", "plan"}
        env = RemoteEnv(server)
        env.reset(options={"task": 0})
        assert env.query("plan") == "say apple"
        env.close()


def test_a_query_is_named_in_at_most_six_files():
    sources = [path for folder in ("agentgym", "servers") for path in (ROOT / folder).rglob("*.py")]
    named = [path for path in sources if re.search(r"\bhint\b", path.read_text(encoding="utf-8"))]
    assert len([path for path in named if "class EchoEnv" not in path.read_text(encoding="utf-8")]) <= 6, named
