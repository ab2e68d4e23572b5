"""Output streams of a process in a container, read with a deadline and kept in bounds."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from typing import Any

PAUSE_S = 0.5
"""A process that writes nothing for this long is asked whether it has ended: what it has left may keep its pipes."""
LAST_S = 2.0
"""Longest pause after a process has ended: on a busy machine the engine passes its output on some time later."""


ROOM = 8192
"""Bytes beside the last half, so that what is cut off from the end leaves a half."""


class Kept:
    """The first and the last half of an output of which no more than `most` bytes are kept."""

    def __init__(self, most: int) -> None:
        self.half = most // 2
        self.first, self.last, self.length = bytearray(), bytearray(), 0

    def add(self, piece: bytes) -> None:
        self.length += len(piece)
        room = self.half - len(self.first)
        if room > 0:
            self.first += piece[:room]
            piece = piece[room:]
        self.last += piece
        if len(self.last) > 2 * self.half + ROOM:
            del self.last[: -self.half - ROOM]

    def content(self) -> bytes:
        """Return all of it. Raises ValueError where the middle was left out."""
        if self.length > 2 * self.half:
            raise ValueError("the output is longer than what is kept of it")
        return bytes(self.first + self.last)

    def ends(self, mark: bytes) -> bool:
        return (self.last or self.first).endswith(mark)

    def after(self, mark: bytes, *, cut: bool = False) -> bytes | None:
        """Return what follows a mark near the end, None where there is none. cut: take it and the mark away."""
        complete = self.length == len(self.first) + len(self.last)
        kept = bytes(self.first + self.last) if complete else bytes(self.last)
        before, found, rest = kept.rpartition(mark)
        if not found:
            return None
        if cut:
            self.length -= len(rest) + len(mark)
            if complete:
                self.first, self.last = bytearray(before[: self.half]), bytearray(before[self.half :])
            else:
                self.last = bytearray(before)
        return rest

    def text(self) -> str:
        first, last = self.first.decode(errors="replace"), self.last[-self.half :].decode(errors="replace")
        left_out = self.length - 2 * self.half
        return f"{first}\n[... {left_out} bytes left out ...]\n{last}" if left_out > 0 else first + last


class Attached:
    """The two output streams of a process, as the engine multiplexes them on one connection."""

    def __init__(self, connection: Any, most: int) -> None:
        self._connection = connection
        self._socket: socket.socket = getattr(connection, "_sock", connection)
        self.output, self.errors = Kept(most), Kept(64 << 10)
        self._rest = b""

    def send(self, content: bytes, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)
        self._socket.sendall(content)

    def read(self, deadline: float, over: Callable[[Attached], bool], ended: Callable[[], bool]) -> bool:
        """Read until the streams end, `over` says so, or the process has ended; False when the time was over first."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLHUP)
        last = False
        while (left := deadline - time.monotonic()) > 0:
            if poll.poll(1000 * min(left, LAST_S if last else PAUSE_S)):
                piece = self._socket.recv(1 << 18)
                if not piece:
                    return True
                self._take(piece)
                if over(self):
                    return True
            elif last:
                return True
            else:
                last = ended()
        return False

    def close(self) -> None:
        response = getattr(self._connection, "_response", None)
        if response is not None:
            response.close()
        self._connection.close()
        self._socket.close()

    def _take(self, piece: bytes) -> None:
        """Sort frames by stream: a byte for the stream, three of nothing, four for the length, the content."""
        rest = self._rest + piece
        place = 0
        while len(rest) - place >= 8:
            length = int.from_bytes(rest[place + 4 : place + 8], "big")
            if len(rest) - place - 8 < length:
                break
            (self.errors if rest[place] == 2 else self.output).add(rest[place + 8 : place + 8 + length])
            place += 8 + length
        self._rest = rest[place:]
