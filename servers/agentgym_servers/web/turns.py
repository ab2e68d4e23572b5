"""Turns of the event loop: what frames, steps and large bodies of all clients may take before other things have theirs.

Without it each of a hundred sockets would have some milliseconds, and a health check would wait for all of them.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable
from time import monotonic

TURN_S = 0.02
"""Seconds of one turn. What has begun is finished: a turn is longer by what its last frame takes."""

LARGE = 64 * 2**10
"""Bytes of a body that is read in a turn of its own."""


class Turns:
    """The turns of one event loop. Belongs to its thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._waiting: deque[Callable[[], None]] = deque()
        self._begun = False
        self._end = 0.0

    def over(self) -> bool:
        """Return whether this turn's time is used up; the first call in a turn begins it, and is False."""
        now = monotonic()
        if not self._begun:
            loop = self._loop()
            assert loop is not None
            loop.call_soon(self._next)
            self._begun, self._end = True, now + TURN_S
        return now >= self._end

    def later(self, go_on: Callable[[], None]) -> None:
        """Call this in a later turn, after what has waited for longer. Only in a turn that `over` was asked in."""
        self._waiting.append(go_on)

    async def mine(self) -> None:
        """Wait, if this turn is over, for one in which nothing else that waits is done."""
        if not self.over():
            return
        turn = asyncio.get_running_loop().create_future()

        def begin() -> None:
            if not turn.done():  # its request may have been cancelled
                turn.set_result(None)
                self._end = 0.0

        self.later(begin)
        await turn

    def _next(self) -> None:
        self._begun = False
        while self._waiting and not self.over():
            self._waiting.popleft()()


_TURNS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = weakref.WeakKeyDictionary()


def turns() -> Turns:
    """Return the turns of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _TURNS.get(loop)
    if found is None:
        found = _TURNS[loop] = Turns(loop)
    return found


async def turn_for(size: int) -> None:
    """Wait for a turn if a body of so many bytes takes one to read."""
    if size > LARGE:
        await turns().mine()
