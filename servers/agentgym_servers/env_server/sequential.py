"""A conversation that answers one frame after another, as OpenEnv's servers do."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Coroutine
from typing import Any

from agentgym_servers.web.websocket_handler import Meter, WebSocketSender

WAITING = 16
"""Frames read ahead of their turn; the socket of a client that sends more is not read."""

FrameReply = bytes | None | Coroutine[Any, Any, bytes | None]
"""A frame to send, now or later; None when there is nothing to send."""


class SequentialHandler:
    """Subclasses say what the answers are; frames that come while one is worked on wait for their turn."""

    link: WebSocketSender

    def __init__(self, meter: Meter | None = None) -> None:
        self.meter = meter
        self._context = contextvars.copy_context()
        """The socket's own, which has its caller: frames come in none."""
        self._busy: asyncio.Future[Any] | None = None
        self._waiting: deque[bytes | str] = deque()
        self._over = False

    def opened(self) -> FrameReply:
        """The socket is open. May not raise, nor may what it returns."""
        return None

    def answered(self, frame: bytes | str) -> FrameReply:
        """The answer to a text frame, or to one that cannot be read for the reason given. May not raise either."""
        raise NotImplementedError

    def left(self) -> None:
        """The socket has gone. Called again when an answer was being made: it may have taken something since."""

    def last(self, frame: bytes) -> None:
        """Send this and close."""
        self._over = True
        self._waiting.clear()
        self.link.send(frame)
        self.link.close()

    def begin(self, link: WebSocketSender) -> None:
        self.link = link
        self._take(self.opened())

    def text(self, frame: bytes) -> None:
        self._put(frame)

    def unreadable(self, why: str) -> None:
        self._put(why)

    def end(self) -> None:
        self._over = True
        self._waiting.clear()
        self.left()

    def _put(self, frame: bytes | str) -> None:
        if self._over:
            return
        if self._busy is None:
            self._take(self.answered(frame))
            return
        self._waiting.append(frame)
        if len(self._waiting) == WAITING:
            self.link.hold(True)

    def _take(self, reply: FrameReply) -> None:
        if isinstance(reply, bytes):
            self.link.send(reply)
        elif reply is not None:
            self._busy = asyncio.get_running_loop().create_task(reply, context=self._context)
            self._busy.add_done_callback(self._finished)

    def _finished(self, reply: asyncio.Future[bytes | None]) -> None:
        self._busy = None
        if self._over:
            self.left()
            return
        if not reply.cancelled() and (frame := reply.result()) is not None:
            self.link.send(frame)
        held = len(self._waiting) >= WAITING
        while self._waiting and self._busy is None:
            self._take(self.answered(self._waiting.popleft()))
        if held and len(self._waiting) < WAITING:
            self.link.hold(False)
