"""A small HTTP/1.1 client: keep-alive connections to one plain-TCP host, no more than our protocol needs.

httpx spends about a millisecond of CPU on a request, ten times what a step over the wire costs otherwise. Not covered:
TLS, proxies, redirects, compression (`agentgym.clients.transports.http` leaves those to httpx).
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

IDLE_S = 30.0
"""A connection that was not used for so long is not used again: the server may be about to close it."""
IDLE_ONCE_S = 2.0
"""The same for a request that must not be sent twice: servers close idle connections after five seconds or more."""
MAX_HEAD = 65536
MAX_CONTENT = 256 * 2**20
"""Bytes of a reply's body, unless a request says otherwise."""

Connect = Callable[[str, int], Awaitable[socket.socket]]
"""Returns a socket that is connected to a host and port. Raises OSError."""


class HttpResponse(NamedTuple):
    status: int
    headers: dict[str, str]
    """Header values by lower-case name; a repeated header keeps its last value."""
    content: bytes


class NotConnected(ConnectionError):
    """No connection could be made: the request was not sent."""


class KeepAlive:
    """Requests to one host. As many connections as there are requests at once; idle ones are used again.

    With `connect`, that is who connects.
    """

    def __init__(
        self,
        host: str,
        port: int,
        authority: str,
        headers: Mapping[str, str] | None = None,
        connect: Connect | None = None,
    ) -> None:
        self._host, self._port, self._connect_to = host, port, connect
        fixed = {"host": authority, "accept": "application/json", "content-type": "application/json", **(headers or {})}
        self._fixed = "".join(["\r\n", *(f"{name}: {value}\r\n" for name, value in fixed.items())]).encode("latin-1")
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    async def request(
        self,
        verb: str,
        target: bytes,
        body: bytes | None,
        timeout_s: float,
        *,
        repeatable: bool = True,
        max_content: int = MAX_CONTENT,
    ) -> HttpResponse:
        """Raises OSError: TimeoutError after `timeout_s`, ConnectionError when there is no (whole, legal) reply, or one
        of more than `max_content` bytes.

        A `repeatable` request is sent again when its connection turns out to have been closed while idle.
        """
        body = body or b""
        head = b"%s %s HTTP/1.1%scontent-length: %d\r\n\r\n" % (verb.encode(), target, self._fixed, len(body))
        async with asyncio.timeout(timeout_s):
            connection = self._reusable(IDLE_S if repeatable else IDLE_ONCE_S)
            try:
                reply = await connection.exchange(head + body, max_content) if connection is not None else None
            except ConnectionError:  # most likely it was closed while idle
                if not repeatable:
                    raise
                reply = None
            if connection is None or reply is None:
                connection = await self._connect()
                reply = await connection.exchange(head + body, max_content)
        if connection.open:
            connection.used = time.monotonic()
            self._idle.append(connection)
        return reply

    async def close(self) -> None:
        for connection in list(self._open):
            connection.drop()
        self._idle.clear()
        await asyncio.sleep(0)  # transports close their sockets in the next turn of the loop

    def _reusable(self, idle_s: float) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open and time.monotonic() - connection.used < idle_s:
                return connection
            connection.drop()
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        where: dict[str, Any] = {"host": self._host, "port": self._port}
        try:
            if self._connect_to is not None:
                where = {"sock": await self._connect_to(self._host, self._port)}
            _, connection = await loop.create_connection(lambda: _Connection(self._open), **where)
        except OSError as error:
            raise NotConnected(str(error)) from error
        return connection


class _Connection(asyncio.Protocol):
    def __init__(self, registry: set[_Connection]) -> None:
        self.open = False
        self.used = 0.0
        self._registry = registry
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiter: asyncio.Future[HttpResponse] | None = None
        self._head: tuple[int, dict[str, str], int] | None = None
        """Status, headers and where the body begins, once they are here."""
        self._max_content = MAX_CONTENT
        self._chunks = bytearray()
        """The body of a chunked reply, as far as it is here."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.open = transport, True  # type: ignore[assignment]  # uvloop's is no asyncio.Transport
        self._registry.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._registry.discard(self)
        if self._waiter is None or self._waiter.done():
            return
        if self._head is not None and not {"content-length", "transfer-encoding"} & set(self._head[1]):
            status, headers, start = self._head  # a body that ends with the connection
            self._waiter.set_result(HttpResponse(status, headers, bytes(self._buffer[start:])))
        else:
            self._waiter.set_exception(ConnectionResetError(f"the connection was closed before the reply ({exc})"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._waiter is None or self._waiter.done():  # nobody asked
            self.drop()
            return
        try:
            reply = self._read()
        except (ValueError, IndexError) as error:
            self._waiter.set_exception(ConnectionError(f"the reply is not HTTP/1.1: {error}"))
            self.drop()
            return
        if reply is not None:
            if reply.headers.get("connection", "").lower() == "close":
                self.drop()
            self._buffer.clear()
            self._chunks = bytearray()
            self._head = None
            self._waiter.set_result(reply)

    async def exchange(self, request: bytes, max_content: int = MAX_CONTENT) -> HttpResponse:
        self._max_content = max_content
        if self._transport is None or not self.open:
            raise ConnectionResetError("the connection is closed")
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._waiter
        except BaseException:  # also when nobody waits any more: the reply must not be taken for the next one's
            self.drop()
            raise

    def drop(self) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    def _read(self) -> HttpResponse | None:
        """The reply, once all of it is here. Raises ValueError or IndexError for what is not HTTP."""
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > MAX_HEAD or not b"HTTP/1.".startswith(self._buffer[:7]):
                    raise ValueError(f"it begins with {bytes(self._buffer[:60])!r}")
                return None
            first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
            version, status = first.split(" ", 2)[:2]
            if not version.startswith("HTTP/1."):
                raise ValueError(f"it begins with {first[:60]!r}")
            pairs = (line.partition(":") for line in lines)
            self._head = int(status), {name.strip().lower(): value.strip() for name, _, value in pairs}, end + 4
        status, headers, start = self._head
        if len(self._buffer) - start + len(self._chunks) > self._max_content + MAX_HEAD:
            raise ValueError(f"it has more than {self._max_content} bytes")
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return HttpResponse(status, headers, bytes(self._chunks)) if self._dechunk(start) else None
        if "content-length" not in headers:
            return HttpResponse(status, headers, b"") if status in (204, 304) else None
        length = int(headers["content-length"])
        if length < 0:
            raise ValueError(f"its length is {length}")
        if length > self._max_content:
            raise ValueError(f"it has {length} bytes, and may have {self._max_content}")
        if len(self._buffer) < start + length:
            return None
        return HttpResponse(status, headers, bytes(self._buffer[start : start + length]))

    def _dechunk(self, start: int) -> bool:
        """Take the complete chunks out of the buffer, whose body begins at `start`. Trailers are not read.

        Return whether the last one was there.
        """
        buffer, position = self._buffer, start
        while (end := buffer.find(b"\r\n", position)) >= 0:
            size = int(buffer[position:end].split(b";")[0], 16)
            stop = end + 2 + size + 2
            if size < 0 or size > self._max_content:
                raise ValueError(f"a chunk has {size} bytes")
            if len(buffer) < stop:
                break
            if size == 0:
                return True
            self._chunks += buffer[end + 2 : end + 2 + size]
            position = stop
        del buffer[start:position]
        return False
