"""Calls that take long, in threads beside the event loop, each within a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

ResultT = TypeVar("ResultT")


class _Stopped(BaseException):
    """Raised in a thread whose time is over."""


class TimeLimit:
    """Runs at most `at_once` calls at a time, each stopped after `limit_s` seconds. Use it within one event loop."""

    def __init__(self, limit_s: float, at_once: int) -> None:
        self.limit_s = limit_s
        self._slots = asyncio.Semaphore(at_once)

    async def run(self, function: Callable[[], ResultT]) -> ResultT:
        """The result of `function()`. Raises TimeoutError when it takes longer, and BlockingIOError when no slot was
        free for as long: a slot is free again once its thread has ended."""
        try:
            await asyncio.wait_for(self._slots.acquire(), self.limit_s)
        except TimeoutError as error:
            raise BlockingIOError("too many calls are under way") from error
        call = _Call(function, self._slots.release)
        try:
            return await asyncio.wait_for(asyncio.shield(call.result), self.limit_s)
        except (TimeoutError, asyncio.CancelledError):
            call.stop()
            raise


class _Call(Generic[ResultT]):
    """A thread that computes one result."""

    def __init__(self, function: Callable[[], ResultT], ended: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.result: asyncio.Future[ResultT] = self._loop.create_future()
        self._function, self._ended = function, ended
        self._lock = threading.Lock()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="time-limited call", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Raise an exception in the thread, which ends it as soon as it executes Python code."""
        with self._lock:
            if not self._over:
                thread = ctypes.c_ulong(self._thread.ident or 0)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_Stopped))

    def _run(self) -> None:
        settle: Callable[[], None]
        try:
            try:
                result = self._function()
                settle = lambda: self.result.set_result(result)  # noqa: E731
            finally:
                with self._lock:
                    self._over = True
                for _ in range(
                    2
                ):  # an exception that is on its way is raised at the end of a turn: here, at the latest
                    pass
        except BaseException as error:  # noqa: BLE001  (handed to whoever waits)
            raised = error
            settle = lambda: self._fail(raised)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._settle, settle)

    def _fail(self, error: BaseException) -> None:
        self.result.set_exception(TimeoutError() if isinstance(error, _Stopped) else error)
        self.result.exception()  # seen, also where nobody waits any more

    def _settle(self, settle: Callable[[], None]) -> None:
        self._ended()
        if not self.result.done():
            settle()
