"""The verbs of environments that run here, over the table of sessions."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from agentgym.errors import BadRequest, EnvironmentFailure, EpisodeLost
from agentgym.protocol import (
    ResetRequest,
    RestoreRequest,
    SessionInfo,
    SessionReply,
    SessionRequest,
    StepRequest,
    Verb,
)
from agentgym.spec import EnvSpec
from agentgym_servers.env_server.session import ServerSession
from agentgym_servers.env_server.session_table import SessionTable
from agentgym_servers.env_server.workers.env_call import ServedEnv
from agentgym_servers.web.backend import FRESH_STATE, BackendReply, consume_exception, done
from agentgym_servers.web.encoding import encode

VerbT = TypeVar("VerbT", bound=Callable[..., BackendReply])


def _counted(verb: VerbT) -> VerbT:
    """Count what the verb refuses at once; what its future ends in, the session counts."""

    @functools.wraps(verb)
    def call(self: LocalBackend, env: str, *arguments: Any) -> BackendReply:
        try:
            return verb(self, env, *arguments)
        except EnvironmentFailure as error:
            self.sessions.metrics.envs[env].errors[error.code] += 1
            raise

    return call  # type: ignore[return-value]


class LocalBackend:
    """The `EnvBackend` that runs its environments in this server."""

    def __init__(self, envs: dict[str, ServedEnv], sessions: SessionTable) -> None:
        self.envs, self.sessions = envs, sessions

    def names(self) -> Sequence[str]:
        return list(self.envs)

    def spec(self, env: str) -> EnvSpec:
        return self.envs[env].spec

    def health(self, env: str) -> dict[str, Any]:
        sessions = self.sessions
        full_of_stuck = len(sessions.stuck) >= sessions.max_sessions
        return {
            "status": "unhealthy" if full_of_stuck else "healthy",
            "env": env,
            "sessions": len(sessions.live),
            "stuck": len(sessions.stuck),
            "env_sessions": sessions.count(env),
            "max_sessions": sessions.max_sessions,
        }

    @_counted
    def open(self, env: str) -> BackendReply:
        session = self.sessions.open(self.envs[env])
        session.pin()
        return _encoded(SessionReply(session_id=session.id))

    @_counted
    def reset(self, env: str, body: ResetRequest) -> BackendReply:
        if body.session_id is not None:
            return self.sessions.find(self.envs[env], body.session_id).reset(body)
        opened = self.sessions.admit(self.envs[env], body.episode_id, body.queue_s)
        return _in(opened, lambda session: session.reset(body))

    @_counted
    def step(self, env: str, body: StepRequest) -> BackendReply:
        session = self.sessions.find(self.envs[env], body.session_id)
        try:
            action = body.action.value()
        except ValueError as error:
            raise BadRequest(str(error)) from error
        return session.step(body, action)

    @_counted
    def close(self, env: str, body: SessionRequest) -> BackendReply:
        with contextlib.suppress(EpisodeLost):  # closed already: asking twice is no mistake
            self.sessions.end(self.sessions.find(self.envs[env], body.session_id), "it was closed")
        return _encoded(SessionReply(session_id=body.session_id, closed=True))

    @_counted
    def query(self, env: str, verb: Verb, body: SessionRequest) -> BackendReply:
        task = self.sessions.find(self.envs[env], body.session_id).query(verb)

        async def answered() -> bytes:
            return verb.encode_reply(body.session_id, await asyncio.shield(task))

        answer = asyncio.ensure_future(answered())
        answer.add_done_callback(consume_exception)
        return answer

    @_counted
    def restore(self, env: str, body: RestoreRequest) -> BackendReply:
        self.envs[env].require("snapshot")
        try:
            state = base64.b64decode(body.snapshot, validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadRequest(f"a snapshot is base64, as /snapshot gave it: {error}") from error
        opened = self.sessions.admit(self.envs[env], body.episode_id, body.queue_s)
        return _in(opened, lambda session: session.restore(state, body.seed, body.episode_id))

    @_counted
    def state(self, env: str, session_id: str) -> BackendReply:
        episode = self.sessions.find(self.envs[env], session_id).episode
        if episode is None:
            return FRESH_STATE
        return encode({"episode_id": episode.id, "step_count": episode.steps})

    @_counted
    def lookup(self, env: str, session_id: str) -> BackendReply:
        session = self.sessions.look(self.envs[env], session_id)
        episode = session.episode
        info = SessionInfo(session_id=session.id, env=env, busy=session.running is not None)
        if episode is not None:
            info = info.model_copy(update={"episode_id": episode.id, "step": episode.steps})
        return _encoded(info)


def _in(
    opened: ServerSession | asyncio.Future[ServerSession], call: Callable[[ServerSession], BackendReply]
) -> BackendReply:
    """Make the call in the session, once there is room for it."""
    if isinstance(opened, ServerSession):
        return call(opened)

    async def later() -> bytes:
        session = await asyncio.shield(opened)
        try:
            reply = call(session)
        except EnvironmentFailure as error:  # raised too late for `_counted`
            session.metrics.errors[error.code] += 1
            raise
        return await done(reply)

    answer = asyncio.ensure_future(later())
    answer.add_done_callback(consume_exception)
    return answer


def _encoded(reply: BaseModel) -> bytes:
    return reply.model_dump_json().encode()
