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
        self._renewed = self._end = 0.0
        """The times from which the next round of the loop begins a new turn, and from which this one is over."""
        self._next_comes = False
        self._taken = False
        """Somebody has this turn for itself."""

    def over(self) -> bool:
        """Return whether this turn's time is used up. The next one begins once the loop has looked at everything else.

        This is asked before every frame: a turn that has hardly begun goes on in the next rounds of the loop. The
        first answer after a pause is True as well, and costs a round.
        """
        now = monotonic()
        if now < self._renewed:
            return False
        self._schedule()
        return now >= self._end

    def later(self, go_on: Callable[[], None]) -> None:
        """Call this in the next round of the loop or a later one, after what has waited for longer."""
        self._waiting.append(go_on)
        self._schedule()

    async def mine(self) -> None:
        """Wait, if this turn is over, for one in which nothing else that waits is done."""
        if not self.over():
            return
        turn = asyncio.get_running_loop().create_future()

        def begin() -> None:
            if not turn.done():  # its request may have been cancelled
                turn.set_result(None)
                self._taken = True

        self.later(begin)
        await turn

    def _schedule(self) -> None:
        if not self._next_comes:
            self._next_comes = True
            loop = self._loop()
            assert loop is not None
            loop.call_soon(self._next)

    def _next(self) -> None:
        self._next_comes = self._taken = False
        now = monotonic()
        self._renewed, self._end = now + TURN_S / 4, now + TURN_S
        while self._waiting and not (self._taken or self.over()):
            self._waiting.popleft()()
        if self._waiting:
            self._schedule()


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
