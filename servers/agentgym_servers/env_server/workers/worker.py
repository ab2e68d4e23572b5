"""Workers, which call an environment: the one seam between a session and the environment's code."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from agentgym.env import Env
from agentgym.session import SessionThread
from agentgym_servers.env_server.workers.env_call import ServedEnv, describe, open_env, perform

OnClosed = Callable[[], None]


def noop() -> None:
    """Do nothing."""


class Worker(Protocol):
    """One session's environment, wherever it runs. Method names, plain arguments, checked answers and typed errors
    cross."""

    inline: bool
    """The environment runs in the server's own thread: `call_now` is for this one."""
    stuck: bool
    """A call has missed its deadline and has not returned yet."""

    def call_now(self, method: str, *arguments: Any) -> Any:
        """Call an inline environment; the first call opens it. Raises EnvironmentFailure."""
        ...

    async def call(self, method: str, *arguments: Any, deadline_s: float) -> Any:
        """Call the environment, wherever it runs. Raises DeadlineExceeded after `deadline_s`: the worker is lost.

        Raises EpisodeLost at once when the worker is closed meanwhile.
        """
        ...

    def close(self, freed: OnClosed = noop) -> None:
        """Close the environment without waiting; `freed` is called, in whichever thread, once it no longer runs."""
        ...


class LocalWorker:
    """Runs the environment in the server's own thread when its spec says `inline`, else in a thread of its own.

    That is for environments made by a factory, which only this process can call. A thread cannot be killed: one that
    missed its deadline is `stuck` until the environment returns.
    """

    def __init__(self, env: ServedEnv) -> None:
        self.env = env
        self.inline = env.spec.inline
        self.stuck = False
        self._env: Env | None = None
        self._thread = None if self.inline else SessionThread(env.name)

    def call_now(self, method: str, *arguments: Any) -> Any:
        if self._env is None:
            self._env = open_env(self.env)
        return perform(self.env, self._env, method, *arguments)

    async def call(self, method: str, *arguments: Any, deadline_s: float) -> Any:
        if self._thread is None:
            return self.call_now(method, *arguments)
        try:
            return await self._thread.call(lambda: self.call_now(method, *arguments), deadline_s)
        finally:
            self.stuck = self._thread.stuck

    def close(self, freed: OnClosed = noop) -> None:
        if self._thread is None:
            self._close(freed)
        else:
            self._thread.stop(lambda: self._close(freed))

    def _close(self, freed: OnClosed) -> None:
        try:
            if self._env is not None:
                self._env.close()
        except BaseException as error:  # noqa: BLE001  (the session is over anyway)
            logging.getLogger(__name__).warning("%s raised while closing: %s", self.env.name, describe(error))
        finally:
            self._env, self.stuck = None, False
            freed()
