"""Several coroutines at once, of which none goes on when one has failed; and work beside an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

_home: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("home_loop", default=None)


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order. Where one fails, or the caller is cancelled, the others are cancelled, once, and have ended.

    `asyncio.gather` cancels them too, but returns before they have ended; cancelled again, they could not clean up.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    if not tasks:
        return []
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def beside_the_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Carry out a coroutine in a thread with a loop of its own, while the present loop goes on."""
    _home.set(asyncio.get_running_loop())
    return await asyncio.to_thread(lambda: asyncio.run(work()))


async def in_home_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine; beneath `beside_the_loop` in the loop that it was called from, to which engines and sessions
    belong."""
    home = _home.get()
    if home is None or home is asyncio.get_running_loop():
        return await coroutine
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, home))
