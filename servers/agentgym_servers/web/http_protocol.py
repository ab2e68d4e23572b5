"""uvicorn's HTTP protocol within the bounds of a server: heads, half-sent requests, connections.

What is refused here never reaches the application: no key is looked at and nothing is kept. Each refusal is a
WireError, after which the connection is closed.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentgym_servers.web.connections import Connections, Refusal

MALFORMED = Refusal(400, "BAD_REQUEST", "this is not a valid HTTP/1.1 request")
TWO_HOSTS = Refusal(400, "BAD_REQUEST", "a request has one Host header")
CHOPPED = Refusal(400, "BAD_REQUEST", "the body has too many short chunks; send it in longer ones")
CHUNK_BYTES = 64
"""Bytes of an average chunk that is not short."""
PIPELINED = Refusal(400, "BAD_REQUEST", "too many requests were sent ahead of their answers; await some first")


NO_HANDSHAKE = Refusal(
    400,
    "BAD_REQUEST",
    "only a WebSocket may be asked for instead of HTTP/1.1: by GET, with Sec-WebSocket-Version 13 and a "
    "Sec-WebSocket-Key of 16 bytes in base64",
)


class _RefusedError(Exception):
    """Stops the parser; `_refusal` says why."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. Overrides what asyncio calls, what the parser calls, and the form of uvicorn's own 400."""

    def __init__(self, *args: Any, connections: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._all, self._bounds = connections, connections.bounds
        self._socket: Any = None
        self._refusal = MALFORMED
        self._closing = False
        self._in_head = True
        self._began: float | None = None
        """Time when the first byte of the present request came; None between two requests."""
        self._unclaimed = 0
        """Bytes since the last that were a complete head or a piece of a body."""
        self._shortest_bound = min(self._bounds.head_bytes, self._bounds.line_bytes)
        self._short = False
        """The bytes that came last begin with a request and are too few for a head beyond its bounds."""
        self._held = 0
        """Bytes of the present body that are counted in those of all connections."""
        self._chunks, self._length = 0, 0
        """Chunks and bytes of the present body."""
        self._answered: float | None = None
        """Time when the sweep first found the request answered before its body was complete."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._socket = transport
        self._began = asyncio.get_running_loop().time()
        refusal = self._all.add(transport, self)
        if refusal is not None:
            self._refuse(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self._socket)
        self._release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._short = self._began is None and len(data) <= self._shortest_bound
        if self._began is None:
            self._began = self.loop.time()
        self._unclaimed += len(data)
        super().data_received(data)
        if self._unclaimed > self._bounds.head_bytes:
            self._refuse(self._too_large())

    def on_headers_complete(self) -> None:
        bounds = self._bounds
        if len(self.headers) > bounds.headers or not (self._short or self._fits()):
            self._refusal = self._too_large()
            raise _RefusedError
        hosts = 0
        for name, _ in self.headers:
            if name == b"host":
                hosts += 1
        if hosts > 1:
            self._refusal = TWO_HOSTS
            raise _RefusedError
        if len(self.pipeline) >= bounds.pipelined:
            self._refusal = PIPELINED
            raise _RefusedError
        parser: Any = self.parser
        upgrade = parser.should_upgrade()
        if upgrade and not _is_handshake(parser.get_method(), self.headers):
            self._refusal = NO_HANDSHAKE
            raise _RefusedError
        self._in_head, self._unclaimed = False, 0
        super().on_headers_complete()
        if not upgrade:
            self.headers = []  # the request has its own list; what comes now is a trailer

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._began is None:  # it came with the end of the request before it
            self._began = self.loop.time()

    def on_body(self, body: bytes) -> None:
        self._unclaimed = 0
        self._chunks += 1
        self._length += len(body)
        if self._chunks > self._bounds.chunks and self._length < self._chunks * CHUNK_BYTES:
            self._refusal = CHOPPED
            raise _RefusedError
        if not self._is_answered():
            self._held += len(body)
            self._all.held += len(body)
            if not self._all.room_for(self._held):
                message = "too many large requests are half-sent; ask again later"
                self._refusal = Refusal(503, "TOO_MANY_BODIES", message)
                raise _RefusedError
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self._began, self._unclaimed, self._answered = True, None, 0, None
        self._chunks, self._length = 0, 0
        self._release()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline:  # uvicorn reads on, and would queue more for each answer
            self.flow.pause_reading()

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser, or a callback of it, did not take."""
        self._refuse(self._refusal)

    def check(self, now: float) -> None:
        if self._began is None or self._closing:
            return
        bounds = self._bounds
        if self._in_head:
            if now - self._began > bounds.head_s:
                self._refuse(Refusal(408, "REQUEST_TIMEOUT", f"a request's head is sent within {bounds.head_s:g} s"))
        elif self._is_answered():
            self._answered = self._answered or now
            if now - self._answered > bounds.linger_s:
                self._close()
        elif now - self._began > bounds.body_s:
            self._refuse(Refusal(408, "REQUEST_TIMEOUT", f"a request's body is sent within {bounds.body_s:g} s"))

    def cut(self, why: str) -> None:
        self._closing = True
        self._socket.abort()

    def _fits(self) -> bool:
        """Return whether the present head and each of its lines keep to their bounds."""
        lines = [len(self.url), *(len(name) + len(value) + 4 for name, value in self.headers)]
        return sum(lines) <= self._bounds.head_bytes and max(lines) <= self._bounds.line_bytes

    def _is_answered(self) -> bool:
        """The response has begun: nothing else may be written."""
        return self.cycle is not None and self.cycle.response_started

    def _too_large(self) -> Refusal:
        bounds = self._bounds
        message = (
            f"a request's head may have {bounds.head_bytes} bytes, {bounds.headers} headers and {bounds.line_bytes} "
            "bytes in a line; this one has more"
        )
        return Refusal(431, "HEAD_TOO_LARGE", message)

    def _refuse(self, refusal: Refusal) -> None:
        if not self._closing and (self._in_head or not self._is_answered()):
            self._socket.write(refusal.http())
        self._close()

    def _close(self) -> None:
        self._closing = True
        self._release()
        self._socket.close()

    def _release(self) -> None:
        self._all.held -= self._held
        self._held = 0


def _is_handshake(method: bytes, headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether a request that asks for another protocol opens a WebSocket: what websockets checks again."""
    fields = {name: value for name, value in headers}
    try:
        key = base64.b64decode(fields.get(b"sec-websocket-key", b"").strip(), validate=True)
    except ValueError:
        return False
    return (
        method == b"GET"
        and len(key) == 16
        and fields.get(b"sec-websocket-version", b"").strip() == b"13"
        and fields.get(b"upgrade", b"").strip().lower() == b"websocket"
    )
