"""A WebSocket connection as an asyncio protocol: text messages in and out, framed by `websockets`' sans-IO half.

Its own asyncio half costs a task and a queue a message, several times what the frame itself does.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidMessage
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from agentgym.clients.transports.http11 import Connect

MAX_MESSAGE = 256 * 2**20
"""Bytes."""


class HandshakeRejected(ConnectionError):
    """The server does not open a WebSocket at this URL."""


class WebSocket(asyncio.Protocol):
    """`on_text` gets every text message, `on_lost` once why the connection ended; neither after `drop`."""

    def __init__(
        self,
        url: str,
        on_text: Callable[[bytes], None],
        on_lost: Callable[[str], None],
        headers: Mapping[str, str] | None = None,
        max_message: int = MAX_MESSAGE,
    ) -> None:
        self._headers = headers or {}
        self._protocol = ClientProtocol(parse_uri(url), max_size=max_message)
        self._on_text, self._on_lost = on_text, on_lost
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._parts: list[bytes] = []
        self.heard = time.monotonic()
        """Time of the last frame received."""
        self.pinged: float | None = None
        """Time of a ping that is unanswered."""

    @classmethod
    async def open(
        cls,
        url: str,
        on_text: Callable[[bytes], None],
        on_lost: Callable[[str], None],
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        connect: Connect | None = None,
        max_message: int = MAX_MESSAGE,
    ) -> WebSocket:
        """Connect, by `connect` if given. A message of more than `max_message` bytes ends the connection.

        Raises OSError; HandshakeRejected when the server answers with anything but a WebSocket.
        """
        socket = cls(url, on_text, on_lost, headers, max_message)
        uri = socket._protocol.uri
        context = ssl.create_default_context() if uri.secure else None
        try:
            async with asyncio.timeout(timeout_s):
                where: dict[str, Any] = {"host": uri.host, "port": uri.port}
                if connect is not None:
                    where = {"sock": await connect(uri.host, uri.port)}
                await socket._loop.create_connection(lambda: socket, ssl=context, **where)
                await socket._opened
        except BaseException:
            socket.drop()
            raise
        return socket

    def send(self, messages: Iterable[bytes]) -> None:
        """Send text messages in one write. They go nowhere once the connection has ended: `on_lost` is on its way."""
        if self._protocol.state is State.OPEN:
            for message in messages:
                self._protocol.send_text(message)
            self._write()

    def ping(self) -> None:
        if self._protocol.state is State.OPEN:
            self.pinged = time.monotonic()
            self._protocol.send_ping(b"")
            self._write()

    def drop(self) -> None:
        """End the connection at once and without a word."""
        self._silence()
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        self._silence()
        if self._transport is None or self._ended.done():
            return
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
            self._write()
        self._transport.close()
        await asyncio.wait((self._ended,), timeout=1.0)
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no asyncio.Transport
        request = self._protocol.connect()
        request.headers.update(self._headers)
        self._protocol.send_request(request)
        self._write()

    def data_received(self, data: bytes) -> None:
        self.heard, self.pinged = time.monotonic(), None
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._read(event)
            elif self._protocol.handshake_exc is None and not self._opened.done():
                self._opened.set_result(None)
        self._write()
        if self._protocol.handshake_exc is not None or self._protocol.close_expected():
            assert self._transport is not None
            self._transport.close()

    def eof_received(self) -> None:
        self._protocol.receive_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        refused = self._protocol.handshake_exc
        if not self._opened.done():
            cut_short = isinstance(refused, InvalidMessage)
            kind = (
                HandshakeRejected if isinstance(refused, InvalidHandshake) and not cut_short else ConnectionResetError
            )
            self._opened.set_exception(kind(f"no WebSocket was opened: {refused or exc or 'the connection ended'}"))
            self._opened.exception()  # seen, also where nobody waits for it any more
            return
        if self._protocol.parser_exc is not None and not isinstance(self._protocol.parser_exc, EOFError):
            why = f"the server broke the WebSocket protocol: {self._protocol.parser_exc}"
        elif self._protocol.close_rcvd is not None:
            why = f"the server closed the socket ({self._protocol.close_rcvd})"
        else:
            why = f"the connection was lost{f' ({exc})' if exc else ''}"
        on_lost = self._on_lost
        self._silence()
        on_lost(why)

    def _read(self, frame: Frame) -> None:
        if frame.opcode is Opcode.TEXT or frame.opcode is Opcode.CONT:
            if frame.fin and not self._parts:
                self._on_text(bytes(frame.data))
                return
            self._parts.append(bytes(frame.data))
            if frame.fin:
                message, self._parts = b"".join(self._parts), []
                self._on_text(message)
        elif frame.opcode is Opcode.BINARY:
            self._on_text(b"")  # no message of ours: its reader will say so

    def _write(self) -> None:
        pieces = self._protocol.data_to_send()
        if pieces and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(pieces))

    def _silence(self) -> None:
        self._on_text, self._on_lost = _ignore, _ignore


def _ignore(_: bytes | str) -> None:
    pass
