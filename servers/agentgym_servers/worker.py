"""Where a world is called: the one seam between a session and the world's code."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from agentgym.env import Env
from agentgym.session import OwnThread
from agentgym_servers.world import World, open_env, perform


class Worker:
    """Runs one session's world: in the server's own thread when its spec says `inline`, else in a thread of its own.

    What crosses this seam are method names, plain arguments, checked answers and typed errors, so that a supervised
    process can take its place. A thread that misses its deadline cannot be killed; `stuck` is True until it returns.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.inline = world.spec.inline
        self.stuck = False
        self._env: Env | None = None
        self._thread = None if self.inline else OwnThread(world.name)

    def call_now(self, method: str, *arguments: Any) -> Any:
        """Call an inline world, or one from its own thread; the first call opens it. Raises EnvironmentFailure."""
        if self._env is None:
            self._env = open_env(self.world)
        return perform(self.world, self._env, method, *arguments)

    async def call(self, method: str, *arguments: Any, deadline_s: float) -> Any:
        """As `call_now`, wherever the world runs. Raises DeadlineExceeded after `deadline_s`: the worker is lost."""
        if self._thread is None:
            return self.call_now(method, *arguments)
        try:
            return await self._thread.call(lambda: self.call_now(method, *arguments), deadline_s)
        finally:
            self.stuck = self._thread.stuck

    def close(self, freed: Callable[[], None] = lambda: None) -> None:
        """Close the world without waiting; `freed` is called, in whichever thread, once it no longer runs."""
        if self._thread is None:
            self._close(freed)
        else:
            self._thread.stop(lambda: self._close(freed))

    def _close(self, freed: Callable[[], None]) -> None:
        try:
            if self._env is not None:
                self._env.close()
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the session is over anyway)
            logging.getLogger(__name__).warning("%s raised while closing: %r", self.world.name, error)
        finally:
            self._env, self.stuck = None, False
            freed()
