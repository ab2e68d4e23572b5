"""Environments that do not speak AgentGym's extension: their endpoints and sockets pass through as they are."""

from __future__ import annotations

import asyncio
import contextlib
import re

import websockets
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from agentgym.errors import RateLimited, Unreachable
from agentgym.protocol import WireError
from agentgym_servers.gateway.backend import RegisteredEnv
from agentgym_servers.gateway.destinations import Destinations
from agentgym_servers.gateway.replicas import MAX_DESCRIPTION, Replica
from agentgym_servers.gateway.targets import MalformedTarget, target_of
from agentgym_servers.web.responses import TooLarge, body_of, reply_error, send_error
from agentgym_servers.web.websocket_handler import METER, Meter

TIMEOUT_S = 300.0
MAX_FRAME = 100 * 2**20
"""The largest frame that OpenEnv's own client takes."""
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
ACTING = ("POST", "PATCH")
"""Methods whose request may act twice when it is sent twice: a foreign step has no index."""
NO_CODES = (None, 1005, 1006, 1015)
"""Close codes that no frame may carry: they stand for none."""
OPEN_S = 10.0
"""Seconds for a server's socket to open."""
ANYWHERE = Destinations(private=True)
"""Destinations of servers whose address the gateway chose."""
FOREIGN = {
    "Content-Security-Policy": "sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
"""Headers of what a foreign server wrote: a browser shows it in an origin of its own and runs none of it."""
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(\s*;\s*[\w-]+=(\"[\w .:/=-]*\"|[\w.:/+-]+))*", re.ASCII)
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
        try:
            # As the client wrote it: "path" is percent-decoded, and "%3F" would become the start of a query.
            target = target_of(match[2], scope.get("query_string", b""))
        except MalformedTarget as error:
            return await send_error(scope, receive, send, 400, "BAD_REQUEST", str(error))
        if scope["type"] == "http":
            reply = await _exchange(env, Request(scope, receive), target)
            reply.headers.update(FOREIGN)
            return await reply(scope, receive, send)
        await _socket(env, WebSocket(scope, receive, send), target, scope.get(METER))


async def _exchange(env: RegisteredEnv, request: Request, target: str) -> Response:
    method = "GET" if request.method == "HEAD" else request.method  # uvicorn leaves the body of a HEAD's reply out
    if method not in METHODS:
        return reply_error(405, "METHOD_NOT_ALLOWED", f"a request to an environment is one of {', '.join(METHODS)}")
    try:
        body = await body_of(request, MAX_FRAME)
    except TooLarge as error:
        return reply_error(413, "BODY_TOO_LARGE", str(error))
    except ClientDisconnect:  # nobody is left to read an answer
        return Response(status_code=400)
    try:
        replica = env.pool.least_used()
        reply = await replica.link.request(method, target, body, TIMEOUT_S, repeatable=method not in ACTING)
    except (Unreachable, OSError) as error:
        env.pool.request_health_check()
        failure = Unreachable(f"{env.name} gave no answer ({type(error).__name__}: {error}); ask again")
        env.traffic.failed(request.method, failure.code, str(failure))
        return Response(WireError.of(failure).model_dump_json(), failure.status, media_type="application/json")
    if not 200 <= reply.status <= 599:
        return reply_error(502, "BAD_REPLY", f"{env.name} answered with the status {reply.status}")
    if reply.status in (204, 205, 304):
        return Response(status_code=reply.status)
    kind = reply.headers.get("content-type", "application/json")
    if not _MEDIA_TYPE.fullmatch(kind):
        kind = "application/octet-stream"
    return Response(reply.content, reply.status, {"content-type": kind})


async def _socket(env: RegisteredEnv, client: WebSocket, target: str, meter: Meter | None) -> None:
    await client.accept()
    try:
        replica = env.pool.least_used()
        async with await _connect(replica, target) as server:
            replica.count(+1)
            env.traffic.episodes += 1
            try:
                await _both_ways(client, server, meter)
            finally:
                replica.count(-1)
    except (Unreachable, OSError, ValueError, websockets.WebSocketException) as error:
        env.pool.request_health_check()
        failure = Unreachable(f"{env.name} gave no answer ({type(error).__name__}: {error})")
        env.traffic.failed("ws", failure.code, str(failure))
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # the client has gone away, too
            await client.send_json({"type": "error", "data": {"message": str(failure), "code": "SESSION_ERROR"}})
            await client.close()


async def _connect(replica: Replica, target: str) -> websockets.connect:
    """Return a connection to be entered. Raises OSError.

    A server may not send the gateway elsewhere: a connection that was made beforehand follows no redirect.
    """
    link = replica.link
    connection = await (link.destinations or ANYWHERE).socket(link.host, link.port)
    url = re.sub("^http", "ws", link.url) + target
    return websockets.connect(
        url, sock=connection, compression=None, max_size=MAX_FRAME, max_queue=1, proxy=None, open_timeout=OPEN_S
    )


async def _both_ways(client: WebSocket, server: websockets.ClientConnection, meter: Meter | None) -> None:
    async def up() -> None:
        while (message := await client.receive())["type"] == "websocket.receive":
            try:
                if meter is not None:
                    meter()
            except RateLimited as error:
                await client.send_json({"type": "error", "data": {"message": str(error), "code": error.code}})
                continue
            await server.send(message["text"] if message.get("text") is not None else message["bytes"])

    async def down() -> None:
        async for frame in server:
            await (client.send_text(frame) if isinstance(frame, str) else client.send_bytes(frame))
        await client.close(1000 if server.close_code in NO_CODES else server.close_code)

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
        reply = await replica.link.request("GET", "/schema", None, TIMEOUT_S, max_content=MAX_DESCRIPTION)
        if reply.status != 200 or not all(b'"%s"' % part in reply.content for part in (b"action", b"observation")):
            broken.append(f"GET /schema should give the schemas of action and observation, it gives {reply.status}")
    except OSError as error:
        broken.append(f"GET /schema gave no answer: {error}")
    try:
        async with asyncio.timeout(60), await _connect(replica, "/ws") as socket:
            await socket.send('{"type": "reset", "data": {}}')
            answer = str(await socket.recv())
            if '"observation"' not in answer:
                broken.append(f"a reset over /ws should give an observation, it gives {answer[:200]}")
    except (OSError, TimeoutError, ValueError, websockets.WebSocketException) as error:
        broken.append(f"/ws takes no reset: {type(error).__name__}: {error}")
    return broken
