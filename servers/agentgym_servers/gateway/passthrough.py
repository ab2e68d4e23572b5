"""Environments that do not speak AgentGym's extension: their endpoints and sockets pass through as they are."""

from __future__ import annotations

import asyncio
import contextlib
import re
import string
from urllib.parse import quote

import websockets
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from agentgym.errors import Unreachable
from agentgym.protocol import WireError
from agentgym_servers.gateway.backend import RegisteredEnv
from agentgym_servers.gateway.replicas import Replica
from agentgym_servers.web.responses import TooLarge, body_of, reply_error

TIMEOUT_S = 300.0
MAX_FRAME = 100 * 2**20
"""The largest frame that OpenEnv's own client takes."""
_PATH = re.compile(rb"/envs/([^/]+)(/.*)", re.DOTALL)


class Pipe:
    """ASGI middleware: what is below /envs/NAME/ of such an environment goes to one of its replicas."""

    def __init__(self, app: ASGIApp, envs: dict[str, RegisteredEnv]) -> None:
        self.app, self.envs = app, envs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = _PATH.fullmatch(scope["raw_path"]) if scope["type"] in ("http", "websocket") else None
        env = self.envs.get(match[1].decode("latin-1")) if match else None
        if match is None or env is None or env.spec is not None:
            return await self.app(scope, receive, send)
        query = scope.get("query_string", b"")
        # As the client wrote it: "path" is percent-decoded, and "%3F" would become the start of a query.
        target = quote(match[2] + (b"?" + query if query else b""), safe=string.punctuation)
        if scope["type"] == "http":
            reply = await _exchange(env, Request(scope, receive), target)
            return await reply(scope, receive, send)
        await _socket(env, WebSocket(scope, receive, send), target)


async def _exchange(env: RegisteredEnv, request: Request, target: str) -> Response:
    try:
        body = await body_of(request, MAX_FRAME)
    except TooLarge as error:
        return reply_error(413, "BODY_TOO_LARGE", str(error))
    try:
        replica = env.pool.least_used()
        reply = await replica.link.request(request.method, target, body, TIMEOUT_S)
    except (Unreachable, OSError) as error:
        env.pool.request_health_check()
        failure = Unreachable(f"{env.name} gave no answer ({type(error).__name__}: {error}); ask again")
        env.traffic.failed(request.method, failure.code, str(failure))
        return Response(WireError.of(failure).model_dump_json(), failure.status, media_type="application/json")
    return Response(reply.content, reply.status, media_type=reply.headers.get("content-type", "application/json"))


async def _socket(env: RegisteredEnv, client: WebSocket, target: str) -> None:
    await client.accept()
    try:
        replica = env.pool.least_used()
        url = re.sub("^http", "ws", replica.link.url) + target
        async with websockets.connect(url, compression=None, max_size=MAX_FRAME, proxy=None) as server:
            replica.count(+1)
            env.traffic.episodes += 1
            try:
                await _both_ways(client, server)
            finally:
                replica.count(-1)
    except (Unreachable, OSError, websockets.WebSocketException) as error:
        env.pool.request_health_check()
        failure = Unreachable(f"{env.name} gave no answer ({type(error).__name__}: {error})")
        env.traffic.failed("ws", failure.code, str(failure))
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # the client has gone away, too
            await client.send_json({"type": "error", "data": {"message": str(failure), "code": "SESSION_ERROR"}})
            await client.close()


async def _both_ways(client: WebSocket, server: websockets.ClientConnection) -> None:
    async def up() -> None:
        while (message := await client.receive())["type"] == "websocket.receive":
            await server.send(message["text"] if message.get("text") is not None else message["bytes"])

    async def down() -> None:
        async for frame in server:
            await (client.send_text(frame) if isinstance(frame, str) else client.send_bytes(frame))
        await client.close(server.close_code or 1000)

    pumps = [asyncio.create_task(up()), asyncio.create_task(down())]
    try:
        done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in done:
            with contextlib.suppress(websockets.ConnectionClosed, WebSocketDisconnect, RuntimeError):
                pump.result()
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def check_foreign(replica: Replica) -> list[str]:
    """Return the faults of a server of OpenEnv's protocol, in sentences."""
    broken = []
    try:
        reply = await replica.link.request("GET", "/schema", None, TIMEOUT_S)
        if reply.status != 200 or not all(b'"%s"' % part in reply.content for part in (b"action", b"observation")):
            broken.append(f"GET /schema should give the schemas of action and observation, it gives {reply.status}")
    except OSError as error:
        broken.append(f"GET /schema gave no answer: {error}")
    url = re.sub("^http", "ws", replica.link.url) + "/ws"
    try:
        async with asyncio.timeout(60), websockets.connect(url, compression=None, proxy=None) as socket:
            await socket.send('{"type": "reset", "data": {}}')
            answer = str(await socket.recv())
            if '"observation"' not in answer:
                broken.append(f"a reset over /ws should give an observation, it gives {answer[:200]}")
    except (OSError, TimeoutError, websockets.WebSocketException) as error:
        broken.append(f"/ws takes no reset: {type(error).__name__}: {error}")
    return broken
