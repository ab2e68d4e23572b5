"""Environments in this process, as a connection."""

from __future__ import annotations

import asyncio
from typing import Any

from agentgym import registry
from agentgym.session import LocalSession


class LocalClient:
    """Sessions of an environment in this process, each an instance of its own."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        self._name, self._kwargs = name, kwargs
        self._first: LocalSession | None = LocalSession(registry.make(name, **kwargs))
        self.spec = self._first.spec
        self._sessions = [self._first]

    def session(self) -> LocalSession:
        if self._first is not None:
            session, self._first = self._first, None
        else:
            session = LocalSession(registry.make(self._name, **self._kwargs))
            self._sessions = [kept for kept in self._sessions if not kept.closed]
            self._sessions.append(session)
        return session

    async def close(self) -> None:
        """Close every session. Raises the first failure once all have been tried."""
        for result in await asyncio.gather(*(s.close() for s in self._sessions), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
