"""The seam between the front of a server (HTTP, sockets, OpenEnv's dialect) and whatever stands behind it.

`env_server/local_backend.py` runs environments in this server; the gateway forwards to other servers. The front never
sees a session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from starlette.exceptions import HTTPException

from agentgym.errors import EnvironmentFailure, EpisodeLost
from agentgym.protocol import ResetRequest, RestoreRequest, SessionRequest, StepRequest, Verb
from agentgym.spec import EnvSpec
from agentgym_servers.web.parsing import failure

BackendReply = bytes | asyncio.Future[bytes]
"""A reply's JSON, now or later. A future belongs to the back: whoever awaits it must shield it."""

FRESH_STATE = b'{"episode_id":null,"step_count":0}'
"""The state of a session before its first episode."""

CANCELLED = EpisodeLost("the call was cancelled; the server is stopping")


class EnvBackend(Protocol):
    """The back end of a server's routes. `env` is a name from `names`.

    A verb raises EnvironmentFailure, at once or out of the future. It must not await anything before it has applied
    what was asked: calls that arrive in order take effect in order.
    """

    def names(self) -> Sequence[str]:
        """The environments, as they are called in URLs. The first also answers at the root."""
        ...

    def spec(self, env: str) -> EnvSpec: ...

    def health(self, env: str) -> dict[str, Any]:
        """`status` ("healthy", "degraded" or "unhealthy"), `env`, `sessions`, `max_sessions`, and the back's own."""
        ...

    def open(self, env: str) -> BackendReply:
        """A session without an episode, kept until it is closed or its lease runs out: a SessionReply."""
        ...

    def reset(self, env: str, body: ResetRequest) -> BackendReply:
        """A StepReply."""
        ...

    def step(self, env: str, body: StepRequest) -> BackendReply:
        """A StepReply. Many steps of one request are asked for one by one, in the same turn of the loop."""
        ...

    def close(self, env: str, body: SessionRequest) -> BackendReply:
        """A SessionReply, also for a session that is gone already."""
        ...

    def query(self, env: str, verb: Verb, body: SessionRequest) -> BackendReply:
        """Return the reply of a query of `VERBS`."""
        ...

    def restore(self, env: str, body: RestoreRequest) -> BackendReply:
        """A SessionReply."""
        ...

    def state(self, env: str, session_id: str) -> BackendReply:
        """`{"episode_id", "step_count"}`; renews the lease."""
        ...

    def lookup(self, env: str, session_id: str) -> BackendReply:
        """A SessionInfo; does not renew the lease."""
        ...


def method_of(backend: EnvBackend, verb: Verb) -> Callable[[str, Any], BackendReply]:
    """Return the back end's method for a verb: `query`, or the one of the verb's name."""
    if verb.is_query:
        return lambda env, body: backend.query(env, verb, body)
    return getattr(backend, verb.name)


async def done(answer: BackendReply) -> bytes:
    """The reply, once it is there. That the caller goes away does not cancel it."""
    return answer if isinstance(answer, bytes) else await asyncio.shield(answer)


def consume_exception(future: asyncio.Future[Any]) -> None:
    """An exception counts as seen even when whoever asked has gone away: a callback for futures of a back."""
    if not future.cancelled():
        future.exception()


def entry_of(verbs: EnvBackend, env: str, step: StepRequest) -> BackendReply:
    """One step of many: its reply or its error, as bytes or as a future."""
    try:
        return verbs.step(env, step)
    except EnvironmentFailure as error:
        return failure(error)


def entry_bytes(entry: BackendReply) -> bytes:
    """Return the entry of a step in the results: null while it runs."""
    if isinstance(entry, bytes):
        return entry
    if not entry.done():
        return b"null"
    if entry.cancelled():
        return failure(CANCELLED)
    error = entry.exception()
    if error is None:
        return entry.result()
    if isinstance(error, EnvironmentFailure):
        return failure(error)
    raise error


def env_of(verbs: EnvBackend, name: str | None) -> str:
    """The environment of a path. Raises HTTPException 404."""
    names = verbs.names()
    if name is None and names:
        return names[0]
    if name is None or name not in names:
        raise HTTPException(404, f"this server has no environment {name!r}; it has {', '.join(names) or 'none'}")
    return name
