"""The sessions that a socket of OpenEnv's kind holds: one socket each, and their lease runs while it is there."""

from __future__ import annotations

import asyncio
import contextlib

from agentgym.errors import EnvironmentFailure
from agentgym_servers.web.backend import EnvBackend, done


class Attachments:
    """The (environment, session id) pairs that have a socket.

    Their leases are renewed, as OpenEnv's sessions outlive any pause.
    """

    def __init__(self, verbs: EnvBackend, lease_s: float) -> None:
        self._verbs, self._every_s = verbs, lease_s / 3
        self._attached: set[tuple[str, str]] = set()
        self._closing: set[tuple[str, str]] = set()
        self._renewing: asyncio.Task[None] | None = None

    def has(self, env: str, session_id: str) -> bool:
        return (env, session_id) in self._attached

    def add(self, env: str, session_id: str) -> None:
        self._attached.add((env, session_id))
        if self._renewing is None:
            self._renewing = asyncio.ensure_future(self._renew())

    def close_later(self, env: str, session_id: str) -> None:
        """Close the session when it is detached."""
        self._closing.add((env, session_id))

    def remove(self, env: str, session_id: str) -> bool:
        """Detach; whether the session is to be closed now."""
        self._attached.discard((env, session_id))
        if not self._attached and self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        closing = (env, session_id) in self._closing
        self._closing.discard((env, session_id))
        return closing

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await asyncio.gather(*(self._renew_one(env, session_id) for env, session_id in self._attached))

    async def _renew_one(self, env: str, session_id: str) -> None:
        """One that is gone is left to its socket's next frame; one that does not answer holds up no other."""
        with contextlib.suppress(EnvironmentFailure, TimeoutError):
            async with asyncio.timeout(self._every_s):
                await done(self._verbs.state(env, session_id))
