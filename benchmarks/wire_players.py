"""The clients of `benchmarks/wire.py`, each a process of its own so that its CPU can be told apart.

    python wire_players.py KIND URL SERVER_PID SESSIONS SECONDS

prints JSON: steps (or connections), seconds, CPU seconds of client and server, and the latencies' p50 and p99 in ms.
It needs nothing but the standard library, unless KIND is "openenv..." or "ours...", whose packages it then imports.
Bare clients use uvloop where there is one, the others asyncio's own loop, as most programs do.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

WARM_UP_S = 0.7
TICKS = os.sysconf("SC_CLK_TCK")
STEP = {"text": "go"}


class Clock:
    """Counts what is done, and how long each took, once the warm-up is over."""

    def __init__(self) -> None:
        self.on = True
        self.latencies: list[float] = []

    def done(self, began: float) -> float:
        now = time.perf_counter()
        self.latencies.append(now - began)
        return now


def cpu_s(pid: int) -> float:
    """CPU seconds of a process: all its threads, user and system."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def measured(clock: Clock, server: int, seconds: float) -> dict[str, float]:
    await asyncio.sleep(WARM_UP_S)
    clock.latencies.clear()
    began, ours, theirs = time.perf_counter(), time.process_time(), cpu_s(server)
    await asyncio.sleep(seconds)
    spent = time.perf_counter() - began
    client, served, latencies = time.process_time() - ours, cpu_s(server) - theirs, sorted(clock.latencies)
    clock.on = False
    count = max(len(latencies), 1)
    at = [1000 * latencies[int(share * (count - 1))] if latencies else float("nan") for share in (0.5, 0.99)]
    return {"count": count, "seconds": spent, "client": client, "server": served, "p50": at[0], "p99": at[1]}


def frame(payload: bytes) -> bytes:
    """A client's text frame. The mask is zero, so that masking costs nobody anything but the server."""
    size = len(payload)
    head = bytes((0x81, 0x80 | size)) if size < 126 else struct.pack("!BBH", 0x81, 0xFE, size)
    return head + b"\0\0\0\0" + payload


class Socket(asyncio.Protocol):
    """A bare WebSocket client: `heard` is called with each text frame."""

    def __init__(self, host: str, path: str, opened: Callable[[Socket], None], heard: Callable[[Socket, bytes], None]):
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ).encode()
        self._opened, self._heard = opened, heard
        self._rest, self._up = b"", False
        self.began = 0.0
        self.state: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self._request)

    def say(self, payload: bytes) -> None:
        self.transport.write(frame(payload))

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        if not self._up:
            head, found, data_left = data.partition(b"\r\n\r\n")
            if not found:
                self._rest = data
                return
            assert head.startswith(b"HTTP/1.1 101"), head
            data, self._up = data_left, True
            self._opened(self)
        while len(data) >= 2:
            size, start = data[1] & 0x7F, 2
            if size >= 126:
                start = 4 if size == 126 else 10
                size = int.from_bytes(data[2:start]) if len(data) >= start else 2**62
            if len(data) < start + size:
                break
            if data[0] == 0x81:
                self._heard(self, data[start : start + size])
            data = data[start + size :]
        self._rest = data


async def raw(clock: Clock, url: str, path: str, sessions: int, dialect: Any) -> None:
    """One socket a session, one step at a time on each."""
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    for _ in range(sessions):
        await loop.create_connection(
            lambda: Socket(parts.netloc, parts.path + path, dialect.opened, dialect.heard), parts.hostname, parts.port
        )


async def raw_churn(clock: Clock, url: str, sessions: int) -> None:
    """Connect, reset, close, and again, in OpenEnv's frames: the same bare client against both."""
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()

    async def once() -> None:
        answered = loop.create_future()
        _, socket = await loop.create_connection(
            lambda: Socket(
                parts.netloc,
                parts.path + "/ws",
                lambda socket: socket.say(b'{"type":"reset","data":{}}'),
                lambda socket, answer: answered.set_result(answer),
            ),
            parts.hostname,
            parts.port,
        )
        assert b'"observation"' in (await answered)[:40]
        socket.say(b'{"type":"close"}')
        socket.transport.close()

    start(turns(clock, once) for _ in range(sessions))


class OpenEnvFrames:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def opened(self, socket: Socket) -> None:
        socket.say(b'{"type":"reset","data":{}}')
        socket.began = time.perf_counter()

    def heard(self, socket: Socket, answer: bytes) -> None:
        assert b'"observation"' in answer[:40], answer
        socket.began = self._clock.done(socket.began)
        if self._clock.on:
            socket.say(b'{"type":"step","data":{"text":"go"}}')


class OurFrames(OpenEnvFrames):
    def opened(self, socket: Socket) -> None:
        socket.say(b'{"id":0,"type":"reset","data":{}}')

    def heard(self, socket: Socket, answer: bytes) -> None:
        if socket.state is None:
            if b'"hello"' not in answer[:20]:
                socket.state = [json.loads(answer)["data"]["session_id"].encode(), 0]
        else:
            self._clock.done(socket.began)
        if socket.state is not None and self._clock.on:
            socket.began = time.perf_counter()
            socket.say(
                b'{"id":1,"type":"step","data":{"session_id":"%s","action":{"text":"go"},"step":%d}}'
                % tuple(socket.state)
            )
            socket.state[1] += 1


class Tcp(asyncio.Protocol):
    """What a step's bytes cost when nothing is done with them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def connection_made(self, transport: Any) -> None:
        self._transport, self._began = transport, time.perf_counter()
        transport.write(b"x" * 150)

    def data_received(self, data: bytes) -> None:
        self._began = self._clock.done(self._began)
        if self._clock.on:
            self._transport.write(data)


async def echo(clock: Clock, url: str, sessions: int) -> None:
    parts = urlsplit(url)
    for _ in range(sessions):
        await asyncio.get_running_loop().create_connection(lambda: Tcp(clock), parts.hostname, parts.port)


class Http(asyncio.Protocol):
    """A bare keep-alive HTTP client that posts the same body again and again."""

    def __init__(self, clock: Clock, host: str, path: str, body: bytes) -> None:
        self._clock = clock
        self._request = (
            b"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (path.encode(), host.encode(), len(body), body)
        )
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        self._transport, self._began = transport, time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._rest += data
        head, found, body = self._rest.partition(b"\r\n\r\n")
        if not found:
            return
        assert head.startswith(b"HTTP/1.1 200"), self._rest
        if len(body) < int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]):
            return
        self._rest = b""
        self._began = self._clock.done(self._began)
        if self._clock.on:
            self._transport.write(self._request)


async def http(clock: Clock, url: str, sessions: int) -> None:
    parts, body = urlsplit(url), json.dumps({"action": STEP}).encode()
    for _ in range(sessions):
        await asyncio.get_running_loop().create_connection(
            lambda: Http(clock, parts.netloc, parts.path + "/step", body), parts.hostname, parts.port
        )


async def http_churn(clock: Clock, url: str, sessions: int) -> None:
    """Connect, reset, close, and again, over plain HTTP: each session a connection of its own."""
    parts = urlsplit(url)

    async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, verb: str, body: dict[str, Any]) -> Any:
        sent = json.dumps(body).encode()
        head = f"POST {parts.path}/{verb} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(sent)}\r\n\r\n"
        writer.write(head.encode() + sent)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        return json.loads(
            await reader.readexactly(int(answer.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
        )

    async def once() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        begun = await post(reader, writer, "reset", {})
        assert (await post(reader, writer, "close", {"session_id": begun["session_id"]}))["closed"]
        writer.close()

    start(turns(clock, once) for _ in range(sessions))


async def openenv(clock: Clock, url: str, sessions: int) -> None:
    """OpenEnv's own client, one for each session."""
    from openenv.core import GenericEnvClient

    async def play() -> None:
        async with GenericEnvClient(base_url=url) as client:
            await client.reset()
            await turns(clock, lambda: client.step(STEP))

    start(play() for _ in range(sessions))


async def openenv_churn(clock: Clock, url: str, sessions: int) -> None:
    from openenv.core import GenericEnvClient

    async def once() -> None:
        async with GenericEnvClient(base_url=url) as client:
            await client.reset()

    start(turns(clock, once) for _ in range(sessions))


async def ours(clock: Clock, url: str, sessions: int, **options: Any) -> None:
    """Our client, one for each session."""
    from agentgym.clients.client import EnvClient

    async def play() -> None:
        async with EnvClient(url, **options) as client:
            session = client.session()
            await session.reset()
            await turns(clock, lambda: session.step("go"))

    start(play() for _ in range(sessions))


async def ours_together(clock: Clock, url: str, sessions: int, **options: Any) -> None:
    """Our client, one for all sessions: what is asked for at the same moment travels together."""
    from agentgym.clients.client import EnvClient

    async def play(client: EnvClient) -> None:
        session = client.session()
        await session.reset()
        await turns(clock, lambda: session.step("go"))

    client = EnvClient(url, **options)
    await client.fetch_spec()
    start(play(client) for _ in range(sessions))


async def ours_churn(clock: Clock, url: str, sessions: int) -> None:
    from agentgym.clients.client import EnvClient

    async def once() -> None:
        async with EnvClient(url) as client:
            session = client.session()
            await session.reset()
            await session.close()

    start(turns(clock, once) for _ in range(sessions))


async def ours_sessions(clock: Clock, url: str, sessions: int) -> None:
    from agentgym.clients.client import EnvClient

    client = EnvClient(url)
    await client.fetch_spec()

    async def once() -> None:
        session = client.session()
        await session.reset()
        await session.close()

    start(turns(clock, once) for _ in range(sessions))


async def turns(clock: Clock, step: Callable[[], Awaitable[Any]]) -> None:
    while clock.on:
        began = time.perf_counter()
        await step()
        clock.done(began)


_running: set[asyncio.Task[None]] = set()


def start(players: Any) -> None:
    _running.update(map(asyncio.ensure_future, players))


KINDS: dict[str, Callable[[Clock, str, int], Awaitable[None]]] = {
    "echo": echo,
    "raw-openenv": lambda clock, url, n: raw(clock, url, "/ws", n, OpenEnvFrames(clock)),
    "raw-ours": lambda clock, url, n: raw(clock, url, "/ws?ext=1", n, OurFrames(clock)),
    "raw-churn": raw_churn,
    "raw-http": http,
    "raw-http-churn": http_churn,
    "openenv": openenv,
    "openenv-churn": openenv_churn,
    "ours": ours,
    "ours-together": ours_together,
    "ours-http": lambda clock, url, n: ours_together(clock, url, n, wire="http"),
    "ours-churn": ours_churn,
    "ours-sessions": ours_sessions,
}


async def main() -> None:
    kind, url, server, sessions, seconds = sys.argv[1:]
    clock = Clock()
    await KINDS[kind](clock, url, int(sessions))
    print(json.dumps(await measured(clock, int(server), float(seconds))), flush=True)
    for task in _running:
        if task.done() and task.exception() is not None:
            raise SystemExit(f"a player failed: {task.exception()!r}")
    os._exit(0)  # the players need no farewell


if __name__ == "__main__":
    if sys.argv[1] in ("echo", "raw-churn", "raw-openenv", "raw-ours", "raw-http", "raw-http-churn"):
        with contextlib.suppress(ImportError):
            import uvloop

            asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(main())
