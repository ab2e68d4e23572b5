from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentgym.clients.client import EnvClient
from agentgym.clients.transports.http11 import HttpResponse, KeepAlive
from agentgym.errors import Unreachable

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
Server = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def with_server(server: Server, script: Callable[[KeepAlive, int], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        listener = await asyncio.start_server(server, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        http = KeepAlive("127.0.0.1", port, f"127.0.0.1:{port}")
        try:
            return await script(http, port)
        finally:
            await http.close()
            listener.close()
            await asyncio.sleep(0.01)

    return asyncio.run(main())


def answering(*pieces: bytes, close: bool = False) -> Server:
    """A server that answers each request with the same bytes, a piece at a time."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.005)
                if close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    return serve


async def ask_twice(http: KeepAlive, _: int) -> list[HttpResponse]:
    return [await http.request("POST", b"/x", b"body", 2) for _ in range(2)]


@pytest.mark.parametrize(
    ("pieces", "close", "status", "content"),
    [
        ([OK], False, 200, b"hi"),
        ([OK[i : i + 1] for i in range(len(OK))], False, 200, b"hi"),
        ([OK], True, 200, b"hi"),
        ([b"HTTP/1.0 200 OK\r\n\r\nuntil ", b"the end"], True, 200, b"until the end"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], False, 204, b""),
        ([b"HTTP/1.1 500 Oh\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"], True, 500, b""),
        (
            [
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
                b"a;x=1\r\n0123456789\r\n0\r",
                b"\n\r\n",
            ],
            False,
            200,
            b"abc0123456789",
        ),
    ],
)
def test_replies_in_every_shape(pieces, close, status, content):
    for reply in with_server(answering(*pieces, close=close), ask_twice):
        assert (reply.status, reply.content) == (status, content)


@pytest.mark.parametrize(
    "piece",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 nope\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
    ],
)
def test_what_is_not_http_is_a_connection_error(piece):
    with pytest.raises(ConnectionError, match=r"not HTTP/1\.1"):
        with_server(answering(piece), ask_twice)


def test_a_reply_cut_short_and_one_that_never_comes():
    with pytest.raises(ConnectionError, match="before the reply"):
        with_server(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", close=True), ask_twice)
    with pytest.raises(TimeoutError):
        with_server(answering(), lambda http, _: http.request("POST", b"/x", None, 0.05))


def test_connections_are_reused_unless_they_failed():
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answering(OK)(reader, writer)

    async def script(http: KeepAlive, _: int) -> None:
        for _ in range(3):
            await http.request("GET", b"/", None, 1)
        assert connections == 1
        await asyncio.gather(*(http.request("GET", b"/", None, 1) for _ in range(4)))
        assert connections == 4
        with pytest.raises(TimeoutError):
            await http.request("GET", b"/", None, 0.0001)
        await asyncio.gather(*(http.request("GET", b"/", None, 1) for _ in range(4)))

    with_server(serve, script)


def test_a_client_of_a_server_that_talks_nonsense():
    async def script(_: KeepAlive, port: int) -> None:
        with pytest.raises(Unreachable, match=r"SSH.*check that the server runs"):
            async with EnvClient(f"http://127.0.0.1:{port}", retries=1):
                pass

    with_server(answering(b"SSH-2.0-OpenSSH\r\n"), script)
