"""A WebSocket whose text frames are handled the moment they arrive, without a task switch for each.

ASGI hands a message over through a queue and a task, and its answer back through a coroutine: more than the price of
a cheap environment's step. `LinkProtocol` is uvicorn's own WebSocket protocol with a short cut for whole text frames;
everything else (handshake, pings, fragments, closing, errors) stays uvicorn's. Under another server the same
conversations run over plain ASGI.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import OPEN
from websockets.utils import apply_mask

from agentgym_servers.web.bounds import BOUNDS
from agentgym_servers.web.connections import Connections, Refusal
from agentgym_servers.web.turns import turns

EXTENSION = "agentgym.link"
"""The key of `scope["extensions"]` under which the protocol offers itself to the application."""
BINARY = "a binary frame cannot be read; frames are text, one JSON object each"
TEXT_FRAME = 0x81
"""The first byte of a text frame that is not a fragment."""
METER = "agentgym.meter"
"""The key of a socket's scope under which there may be a `Meter`."""
NOT_READING = "the client does not read its answers"
POLICY = 1008
"""The code of a socket that is closed for what its client did."""

Meter = Callable[[], None]
"""Called for each frame. Raises RateLimited for one too many."""


class WebSocketSender(Protocol):
    """The sending side of a socket."""

    def send(self, text: bytes) -> None:
        """Send a text frame, UTF-8. Frames keep their order; nothing happens when the socket has gone."""
        ...

    def close(self) -> None:
        """Close with code 1000 once what was sent has left."""
        ...

    def hold(self, on: bool) -> None:
        """Set whether the client's further frames wait."""
        ...


class WebSocketHandler(Protocol):
    """Handler of one socket. Everything is called from the event loop, nothing may block."""

    def begin(self, link: WebSocketSender) -> None:
        """The socket is open."""
        ...

    def text(self, frame: bytes) -> None:
        """A text frame has come. It need not be UTF-8."""
        ...

    def unreadable(self, why: str) -> None:
        """A frame has come that is binary or too large."""
        ...

    def end(self) -> None:
        """The socket has gone."""
        ...


async def serve_websocket(scope: Any, receive: Any, send: Any, conversation: WebSocketHandler) -> None:
    """Hold a conversation over an ASGI application's WebSocket; returns when the socket has gone."""
    await receive()  # websocket.connect
    protocol = scope.get("extensions", {}).get(EXTENSION)
    if protocol is None:
        await _over_asgi(receive, send, conversation)
        return
    protocol.conversation = conversation  # before the client can send its first frame
    try:
        await send({"type": "websocket.accept"})
        conversation.begin(_Direct(protocol, send))
        while (await receive())["type"] != "websocket.disconnect":
            pass
    finally:
        protocol.conversation = None
        conversation.end()


def close_socket(scope: Any, send: Any, code: int, reason: str) -> None:
    """Close an application's WebSocket from outside, whatever the application and its client do."""
    protocol = scope.get("extensions", {}).get(EXTENSION)
    if protocol is not None:
        protocol.end(code, reason)
    else:
        task = asyncio.ensure_future(_quietly_close(send, code, reason))
        _closing.add(task)
        task.add_done_callback(_closing.discard)


_closing: set[asyncio.Task[None]] = set()


class LinkProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol that hands whole text frames to a conversation at once."""

    def __init__(self, *args: Any, connections: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conversation: WebSocketHandler | None = None
        self._all, self.bounds = connections, connections.bounds
        self._turns = turns()
        self._part = bytearray()
        """A frame that is not complete yet."""
        self._need, self._since = 0, 0.0
        """Bytes of that frame, and when it began."""
        self._skip = 0
        """Bytes still to come of a frame that is too large."""
        self._rest = b""
        """Bytes that were read and whose turn has not come."""
        self._kept = 0
        """Bytes of both, as they are counted."""
        self._fragments = 0
        self._ended = False
        self.held = self._stopped = False
        """The conversation wants no more frames for now; `_stopped` also if the client does not read its answers."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._all.add(transport, self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self.transport)
        self._all.held -= self._kept
        self._kept = 0
        super().connection_lost(exc)

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            self.scope["extensions"][EXTENSION] = self  # type: ignore[typeddict-item]

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.close_sent:  # uvicorn forgets this when the application refused the handshake, and logs an error
            self.handshake_complete = True

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        if not self.handshake_initiated:
            self._shake_hands(data)
            return
        if self._rest:
            self._wait(self._rest + data)
            return
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        if self._part:
            self._part += data
            self._keep()
            if len(self._part) < self._need and self.conversation is not None and self.conn.state is OPEN:
                return
            data, self._part = bytes(self._part), bytearray()
            self._keep()
        self._handle(data)

    def check(self, now: float) -> None:
        if self._part and now - self._since > self.bounds.body_s:
            self.end(POLICY, f"a frame is sent within {self.bounds.body_s:g} s")

    def cut(self, why: str) -> None:
        self.end(POLICY, why)

    def end(self, code: int, reason: str) -> None:
        """Close the socket, whatever its client and the application do. Nothing of the client is read any more."""
        if self._ended:
            return
        self._ended = True
        if self.handshake_complete and not self.close_sent:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
            self.conn.send_close(code, reason[:120])
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        self.transport.close()
        self.loop.call_later(self.bounds.linger_s, self.transport.abort)

    def _shake_hands(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except Exception:  # noqa: BLE001  (uvicorn takes for granted that its HTTP parser and websockets' agree)
            self._ended = True
            self.transport.write(Refusal(400, "BAD_REQUEST", "this is not a valid WebSocket handshake").http())
            self.transport.close()

    def _handle(self, data: bytes) -> None:
        """Handle the frames in `data`, as many as may be handled now."""
        start, end, turns = 0, len(data), self._turns
        while start < end:
            if self.conversation is None or self.conn.state is not OPEN:
                super().data_received(data[start:])
                return
            if self._stopped or turns.over():
                self._wait(data[start:])
                if not self._stopped:
                    turns.later(self._go_on)
                return
            if (stop := self._frame(data, start, end)) is None:
                return
            start = stop

    def _wait(self, rest: bytes) -> None:
        self._rest = rest
        self._keep()
        self.set_reading()

    def _go_on(self) -> None:
        """Handle what is left, unless it has to wait."""
        if self._rest and not (self._stopped or self._ended or self.disconnected):
            data, self._rest = self._rest, b""
            self._keep()
            self._handle(data)
        self.set_reading()

    def set_reading(self) -> None:
        """Read from the client exactly while little of it waits and its answers leave."""
        self._stopped = self.held or not self.writable.is_set()
        if self._ended or self.disconnected or self.conversation is None:
            return
        if self._stopped or len(self._rest) > self.bounds.small_bytes:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def hold(self, on: bool) -> None:
        """Set whether the client's further frames wait."""
        self.held = on
        self.set_reading()
        if not on and self._rest:
            self.loop.call_soon(self._go_on)

    def _frame(self, data: bytes, start: int, end: int) -> int | None:
        """Handle the frame that begins at `start`; its end, or None when the rest of `data` is dealt with.

        uvicorn's parser is given whole frames only, or what it will refuse, so that it always stands between two.
        """
        size, head = data[start + 1] & 0x7F if end - start > 1 else 0, 6
        if size == 126:
            size, head = int.from_bytes(data[start + 2 : start + 4]), 8
        elif size == 127:
            size, head = int.from_bytes(data[start + 2 : start + 10]), 14
        stop = start + head + size
        has_head, largest = end - start >= head, self.config.ws_max_size
        conversation = self.conversation
        if has_head and not data[start + 1] & 0x80:  # not masked
            super().data_received(data[start:])
            return None
        if has_head and size > largest and conversation is not None:
            conversation.unreadable(f"a frame may have {largest} bytes, this one has {size}")
            self._skip = max(stop - end, 0)
            return stop
        if end < stop:
            self._part, self._since = bytearray(data[start:]), self.loop.time()
            self._need = stop - start if has_head else head
            self._keep()
            return None
        if data[start] == TEXT_FRAME and conversation is not None and self.conn.current_size is None:
            conversation.text(apply_mask(data[start + head : stop], data[start + head - 4 : start + head]))
        else:
            self._fragments = self._fragments + 1 if self.conn.current_size is not None else 0
            if self._fragments > self.bounds.fragments:
                self.end(POLICY, f"a message has at most {self.bounds.fragments} frames")
                return None
            super().data_received(data[start:stop])
        return stop

    def _keep(self) -> None:
        """Count what is kept of the client's bytes."""
        kept = len(self._part) + len(self._rest)
        self._all.held += kept - self._kept
        self._kept = kept
        if not self._all.room_for(kept):
            self.end(1013, "too many large frames are half-sent; ask again later")

    def send_receive_event_to_app(self) -> None:
        conversation = self.conversation
        if conversation is None:
            super().send_receive_event_to_app()
            return
        data, self.frames = b"".join(self.frames), []
        if self.close_sent:
            return
        if self.curr_msg_data_type == "text":
            conversation.text(data)
        else:
            conversation.unreadable(BINARY)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.set_reading()  # a client that does not read its answers is not read either

    def resume_writing(self) -> None:
        super().resume_writing()
        self.set_reading()
        if self._rest:
            self.loop.call_soon(self._go_on)


class _Direct:
    """A link through LinkProtocol."""

    def __init__(self, protocol: LinkProtocol, send: Any) -> None:
        self._protocol, self._asgi_send = protocol, send
        self._closing: asyncio.Task[None] | None = None

    def send(self, text: bytes) -> None:
        protocol = self._protocol
        if protocol.conn.state is not OPEN or protocol.disconnected:
            return
        size = len(text)
        if size < 126:
            head = b"\x81%c" % size
        elif size < 65536:
            head = b"\x81\x7e" + size.to_bytes(2)
        else:
            head = b"\x81\x7f" + size.to_bytes(8)
        waiting = 0 if protocol.writable.is_set() else protocol.transport.get_write_buffer_size()
        if waiting > protocol.bounds.unread_bytes:
            protocol.end(POLICY, NOT_READING)
        else:
            protocol.transport.write(head + text)

    def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(_quietly_close(self._asgi_send))

    def hold(self, on: bool) -> None:
        self._protocol.hold(on)


async def _quietly_close(send: Any, code: int = 1000, reason: str = "") -> None:
    try:
        await send({"type": "websocket.close", "code": code, "reason": reason})
    except (OSError, RuntimeError):  # it has gone in the meantime
        return


async def _over_asgi(receive: Any, send: Any, conversation: WebSocketHandler) -> None:
    await send({"type": "websocket.accept"})
    link = _Queued()
    writer = asyncio.ensure_future(link.write(send))
    try:
        conversation.begin(link)
        while (message := await receive())["type"] != "websocket.disconnect":
            if message.get("text") is not None:
                conversation.text(message["text"].encode())
            else:
                conversation.unreadable(BINARY)
            await link.free.wait()
    finally:
        conversation.end()
        writer.cancel()


class _Queued:
    """A link over plain ASGI."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._unread = 0
        """Bytes of the frames that wait."""

    def send(self, text: bytes) -> None:
        if self._unread > BOUNDS.unread_bytes:
            self.close()
            return
        self._unread += len(text)
        self._frames.put_nowait(text)

    def close(self) -> None:
        self._frames.put_nowait(None)

    def hold(self, on: bool) -> None:
        (self.free.clear if on else self.free.set)()

    async def write(self, send: Any) -> None:
        try:
            while (frame := await self._frames.get()) is not None:
                await send({"type": "websocket.send", "text": frame.decode()})
                self._unread -= len(frame)
            await send({"type": "websocket.close", "code": 1000})
        except (OSError, RuntimeError):  # the client has gone; `receive` says so too
            return
