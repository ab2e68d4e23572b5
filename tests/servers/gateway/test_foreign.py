"""An environment whose server says nothing of AgentGym's extension: OpenEnv's protocol passes through as it is."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
import websockets
import websockets.sync.client
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket

from agentgym.clients.client import EnvClient
from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.gateway import passthrough
from agentgym_servers.gateway.replica_client import ReplicaClient
from agentgym_servers.web.run import serve_in_thread

from .conftest import eventually


class Metadata:
    """ASGI middleware that answers /metadata."""

    def __init__(self, app: Any, answer: dict[str, Any]) -> None:
        self.app, self.answer = app, answer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        theirs = scope.get("path") == "/metadata"
        await (JSONResponse(self.answer) if theirs else self.app)(scope, receive, send)


def foreign(**metadata: Any) -> Any:
    """Our server, which speaks OpenEnv's protocol, with the metadata of another's."""
    app = create_app({"echo": EchoEnv})
    app.add_middleware(Metadata, answer={"name": "theirs", "description": "an environment", **metadata})
    return app


class Targets:
    """ASGI middleware that notes the path and query of every request, undecoded."""

    def __init__(self, app: Any, requests: list[str]) -> None:
        self.app, self.requests = app, requests

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.requests.append((scope["raw_path"] + b"?" + scope["query_string"]).decode())
        await self.app(scope, receive, send)


def ask(socket: Any, kind: str, **data: Any) -> Any:
    socket.send(json.dumps({"type": kind, "data": data}))
    return json.loads(socket.recv())


def test_a_foreign_env_is_piped_through(gateway):
    with serve_in_thread(foreign()) as server:
        reply = gateway.register("theirs", url=server)
        assert (reply.status_code, reply.json()["spec"]) == (201, None)
        assert gateway.http.get("/envs/theirs/metadata").json()["name"] == "theirs"
        assert gateway.http.get("/envs/theirs/health").json()["status"] == "healthy"
        assert gateway.http.post("/envs/theirs/reset", json={"index": 0}).json()["observation"]["text"] == "Say: apple"
        assert gateway.http.post("/envs/theirs/reset", json={"seed": -1}).status_code == 422
        url = f"ws{gateway.url[4:]}/envs/theirs/ws"
        with (
            websockets.sync.client.connect(url, proxy=None) as one,
            websockets.sync.client.connect(url, proxy=None) as other,
        ):
            assert ask(one, "reset", index=0)["data"]["observation"]["text"] == "Say: apple"
            assert ask(other, "reset", index=1)["data"]["observation"]["text"] == "Say: drum"
            assert ask(one, "step", text="apple")["data"]["observation"]["text"] != "Say: drum"
            assert ask(one, "nonsense")["data"]["code"] == "UNKNOWN_TYPE"
            # The two, and perhaps, when its health was looked at, the one that POST /reset left to its lease.
            assert gateway.env("theirs")["running"][0]["sessions"] in (2, 3)
        eventually(lambda: gateway.env("theirs")["running"][0]["sessions"] <= 1)

        async def play() -> Any:
            known_spec = {"max_turns": 8, "instructions": "Repeat the word."}
            async with EnvClient(f"{gateway.url}/envs/theirs", spec=known_spec) as client:
                session = client.session()
                await session.reset(seed=0)
                return (await session.step("apple")).observation

        assert "Say:" in asyncio.run(play())
        assert gateway.http.delete("/environments/theirs").status_code == 200


def test_foreign_paths_stay_percent_encoded(gateway):
    requests: list[str] = []
    app = foreign()
    app.add_middleware(Targets, requests=requests)
    with serve_in_thread(app) as server:
        assert gateway.register("theirs", url=server).status_code == 201
        requests.clear()
        for path in ("/step%3Fadmin=1", "/a%20b?q=%20%2F", "/caf%C3%A9"):
            assert gateway.http.get(f"/envs/theirs{path}").status_code == 404
        assert [request for request in requests if not request.startswith(("/health", "/ready"))] == [
            "/step%3Fadmin=1?",
            "/a%20b?q=%20%2F",
            "/caf%C3%A9?",
        ]


def env_at(url: str) -> Any:
    """A piped environment as far as requests need it, its one server at `url`."""
    replica = SimpleNamespace(link=ReplicaClient(url), count=lambda _: None)
    pool = SimpleNamespace(least_used=lambda: replica, request_health_check=lambda: None)
    return SimpleNamespace(name="theirs", pool=pool, traffic=SimpleNamespace(episodes=0, failed=lambda *_: None))


def test_a_foreign_step_whose_reply_is_lost_acts_once():
    acted: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for reply in (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", b""):  # the second one is lost
            acted.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(reply)
        writer.close()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def main() -> list[int]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        env = env_at(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        scope = {"type": "http", "method": "POST", "path": "/step", "query_string": b"", "headers": []}
        async with server:
            return [(await passthrough._exchange(env, Request(scope, receive), "/step")).status_code for _ in range(2)]

    assert asyncio.run(main()) == [200, 503]
    assert len(acted) == 2


def test_a_foreign_socket_closed_without_a_code_is_no_failure():
    sent: list[dict[str, Any]] = []

    async def serve(socket: websockets.ServerConnection) -> None:
        await socket.send("over")
        socket.protocol.send_close()
        socket.send_data()
        await socket.wait_closed()

    async def main() -> None:
        requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        requests.put_nowait({"type": "websocket.connect"})

        async def send(message: Any) -> None:
            sent.append(message)

        async with websockets.serve(serve, "127.0.0.1", 0) as server:
            env = env_at(f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}")
            client = WebSocket({"type": "websocket", "path": "/ws", "headers": []}, requests.get, send)
            await passthrough._socket(env, client, "/ws", None)

    asyncio.run(main())
    assert [message.get("text") or message.get("code") for message in sent[1:]] == ["over", 1000]


def test_a_server_that_goes_away_is_typed(gateway):
    with serve_in_thread(foreign()) as server:
        assert gateway.register("theirs", url=server).status_code == 201
    reply = gateway.http.post("/envs/theirs/reset", json={})
    assert (reply.status_code, reply.json()["code"]) == (503, "UNREACHABLE")
    with websockets.sync.client.connect(f"ws{gateway.url[4:]}/envs/theirs/ws", proxy=None) as socket:
        assert json.loads(socket.recv())["data"]["code"] == "SESSION_ERROR"


def test_what_is_no_environment_server_is_refused(gateway):
    page = FastAPI()
    page.get("/health")(lambda: {"status": "healthy"})
    page.get("/metadata")(lambda: {"name": "a page"})
    with serve_in_thread(page) as server:
        reply = gateway.register("page", url=server).json()
        assert reply["code"] == "CHECK_FAILED"
        assert "GET /schema should give" in reply["message"]
        assert "/ws takes no reset" in reply["message"]
    assert gateway.registry.envs() == []


@pytest.mark.parametrize("metadata", [{"name": ""}, {"agentgym": "nonsense"}, {"agentgym": {"spec": 1}}])
def test_metadata_that_cannot_be_read_is_refused(gateway, metadata):
    with serve_in_thread(foreign(**metadata)) as server:
        reply = gateway.register("theirs", url=server)
        assert reply.json()["code"] in ("ENVIRONMENT_UNREACHABLE", "CHECK_FAILED"), reply.text
    assert gateway.registry.envs() == []
