"""Sessions of environments that an AgentGym server serves: our own protocol, over whichever wire."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from collections.abc import Awaitable
from json.encoder import encode_basestring
from typing import Any, Protocol

import pydantic_core
from pydantic import ValidationError

from agentgym.clients.transports.http import ReplyT, Unanswered, malformed_reply
from agentgym.env import Action
from agentgym.errors import (
    BadRequest,
    DeadlineExceeded,
    EnvironmentCrashed,
    EnvironmentFailure,
    EpisodeLost,
    OutOfOrder,
    SessionBusy,
    UnknownSession,
    Unreachable,
)
from agentgym.protocol import (
    VERBS,
    RestoreRequest,
    SessionReply,
    SessionRequest,
    StepReply,
    WireAction,
    decode_observation,
)
from agentgym.session import Session, Step
from agentgym.spec import EnvSpec

RESETS_AT_ONCE = 8
QUICK_RESETS_AT_ONCE = 256
"""The same for an environment that answers at once (`inline`)."""
MAX_QUEUE_S = 600.0


class Transport(Protocol):
    """A way to one environment of a server. Its calls raise EnvironmentFailure: what the server said, or
    Unreachable."""

    url: str

    def step(self, body: bytes) -> Awaitable[Any]:
        """The JSON of a StepReply to a StepRequest's."""
        ...

    async def ask(
        self,
        verb: str,
        body: bytes,
        model: type[ReplyT],
        *,
        timeout_s: float = ...,
        retries: int = ...,
        queue_until: float | None = ...,
    ) -> ReplyT:
        """Any other verb. A server without room is asked again for a while, a lost reply `retries` times.

        A request that may wait at the server has a time `queue_until` which it does so; it raises Unanswered whenever
        `timeout_s` passes without a reply.
        """
        ...

    async def stop(self) -> None:
        """Cancel the steps under way."""
        ...

    async def close(self) -> None: ...


class NativeClient:
    """Sessions over one wire. queue_s: how long the server may let a session wait for room, where it can do so.

    `timeout_s` is for one request, without that wait.
    """

    def __init__(self, spec: EnvSpec, wire: Transport, *, timeout_s: float, queue_s: float | None) -> None:
        self.spec, self.wire, self.url = spec, wire, wire.url
        self.timeout_s = timeout_s
        self.queue_s = None if queue_s is None else min(queue_s, MAX_QUEUE_S)
        self._at_once = QUICK_RESETS_AT_ONCE if spec.inline else RESETS_AT_ONCE
        self.openings = asyncio.Semaphore(self._at_once)
        self.resets = asyncio.Semaphore(self._at_once)
        """Two, so that sessions that wait for room do not hold up the resets of those that have it."""
        self._sessions: set[RemoteSession] = set()

    def session(self) -> RemoteSession:
        """A new session: the server opens it at its first `reset` or `restore`."""
        session = RemoteSession(self)
        self._sessions.add(session)
        return session

    def forget(self, session: RemoteSession) -> None:
        self._sessions.discard(session)

    async def close(self) -> None:
        """Close the sessions that are still open, as far as the server answers, and the wire."""
        await self.wire.stop()
        left = list(self._sessions)
        while left:
            now, left = left[: self._at_once], left[self._at_once :]
            if not all(await asyncio.gather(*(session.end() for session in now))):
                break  # no answer: the leases of the others will run out
        self._sessions.clear()
        await self.wire.close()


class RemoteSession(Session):
    """One session of a server's environment; the `Session` of `agentgym.session`.

    An episode that is lost stays lost: every step raises EpisodeLost until the caller resets.
    """

    def __init__(self, client: NativeClient) -> None:
        self.spec = client.spec
        self._client = client
        self._id: str | None = None
        self._episode_id: str | None = None
        self._steps = 0
        self._prefix = b""
        """The start of a StepRequest's JSON, the same throughout an episode."""
        self._stepping = False
        self._why_lost = ""

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Step:
        body = dict(options or {})
        if reserved := sorted({"seed", "episode_id", "session_id", "index", "queue_s"} & set(body)):
            raise BadRequest(f"{', '.join(reserved)} cannot be a reset option; a task is chosen by `task` and `split`")
        if "task" in body:
            body["index"] = body.pop("task")
        body |= {"seed": seed, "episode_id": uuid.uuid4().hex}
        reply = await self._begin("reset", {key: value for key, value in body.items() if value is not None}, StepReply)
        return self._read(reply)

    async def step(self, action: Action) -> Step:
        if self._stepping:
            raise SessionBusy("this session is still taking a step: await it before the next")
        session_id = self._session_id()
        try:
            body = b'%s%d,"action":%s}' % (self._prefix, self._steps, _encoded(action))
        except (TypeError, ValueError) as error:
            raise BadRequest(f"the action cannot be sent as JSON: {error}") from error
        self._stepping = True
        try:
            content = await self._client.wire.step(body)
        except EnvironmentFailure as error:
            raise self._failed(error) from error
        finally:
            self._stepping = False
        step = self._checked(content, session_id)
        self._steps += 1
        return step

    async def query(self, name: str) -> Any:
        """Ask the server for the value of a query."""
        verb, session_id = VERBS[name], self._session_id()
        body = SessionRequest(session_id=session_id).model_dump_json().encode()
        try:
            reply = await self._client.wire.ask(name, body, verb.reply)
        except EnvironmentFailure as error:
            raise self._failed(error) from error
        self._check_own(reply, session_id)
        try:
            return verb.value.decode(getattr(reply, verb.field))
        except ValueError as error:
            raise EnvironmentCrashed(f"{self._client.url}/{name} answered no {verb.field}: {error}") from error

    async def restore(self, state: bytes, *, seed: int | None = None) -> None:
        """Continue from a snapshot of this environment, also another session's: the server opens a new session for
        it."""
        await self.end()
        snapshot = base64.b64encode(state).decode()
        request = RestoreRequest(snapshot=snapshot, seed=seed, episode_id=uuid.uuid4().hex)
        await self._begin("restore", request.model_dump(exclude_unset=True, exclude_none=True), SessionReply)

    async def close(self) -> None:
        """Give the session back. A server that does not answer keeps it until its lease runs out."""
        self._client.forget(self)
        await self.end()

    async def end(self) -> bool:
        """End the server's session, if there is one; False when the server did not answer."""
        session_id, self._id, self._why_lost = self._id, None, "the session was closed"
        if session_id is None:
            return True
        try:
            body = SessionRequest(session_id=session_id).model_dump_json().encode()
            await self._client.wire.ask("close", body, SessionReply, retries=1, timeout_s=5.0)
        except (EpisodeLost, UnknownSession):  # gone already, which is what was wanted
            return True
        except EnvironmentFailure:
            return False
        return True

    async def _begin(self, verb: str, body: dict[str, Any], model: type[Any]) -> Any:
        self._episode_id, self._why_lost = None, f"{verb} failed"
        try:
            reply = await self._ask_begin(verb, body, model)
        except (EpisodeLost, UnknownSession):  # a new episode may as well begin in a new session
            self._id = None
            reply = await self._ask_begin(verb, body, model)
        except EnvironmentFailure as error:
            raise self._failed(error) from error
        if not reply.session_id:
            raise self._failed(EnvironmentCrashed(f"{self._client.url}/{verb} answered without a session_id"))
        self._id, self._episode_id, self._steps = reply.session_id, body["episode_id"], 0
        self._prefix = b'{"session_id":%s,"episode_id":"%s","step":' % (
            json.dumps(self._id).encode(),
            body["episode_id"].encode(),
        )
        return reply

    async def _ask_begin(self, verb: str, body: dict[str, Any], model: type[Any]) -> Any:
        client = self._client
        async with client.openings if self._id is None else client.resets:
            if self._id is not None:
                return await client.wire.ask(verb, _json({**body, "session_id": self._id}), model)
            if client.queue_s is None:
                return await client.wire.ask(verb, _json(body), model)
            return await self._ask_queued(verb, body, model, client.queue_s)

    async def _ask_queued(self, verb: str, body: dict[str, Any], model: type[Any], queue_s: float) -> Any:
        """Ask every `timeout_s` until there is room, for `queue_s` seconds and one timeout. The server knows a request
        by its episode: it keeps its place in the queue, and acts once."""
        client, until = self._client, time.monotonic() + queue_s
        while True:
            left_s = max(0.0, until - time.monotonic())
            try:
                return await client.wire.ask(verb, _json({**body, "queue_s": left_s}), model, queue_until=until)
            except Unanswered as error:
                if not left_s:
                    message = f"gave no answer in {queue_s + client.timeout_s:g} s; check that the server runs"
                    raise Unreachable(f"{client.url}/{verb} {message}") from error

    def _session_id(self) -> str:
        """The session in its episode. Raises OutOfOrder before the first one, EpisodeLost after a lost one."""
        if self._id is None or self._episode_id is None:
            lost = EpisodeLost(f"there is no episode ({self._why_lost}): call reset()")
            raise lost if self._why_lost else OutOfOrder("there is no episode yet: call reset()")
        return self._id

    def _failed(self, error: EnvironmentFailure) -> EnvironmentFailure:
        """Return the error to raise; unless the request was at fault, the episode is over."""
        if isinstance(error, UnknownSession):
            error = EpisodeLost(f"the server does not know the session; was it restarted? ({error})")
        if isinstance(error, EpisodeLost | EnvironmentCrashed | DeadlineExceeded):
            self._id, self._episode_id, self._why_lost = None, None, str(error)
        return error

    def _checked(self, content: Any, session_id: str) -> Step:
        """The Step of a StepReply's JSON; what is wrong with it is raised."""
        try:
            reply = StepReply.model_validate(content)
        except ValidationError as error:
            raise self._failed(
                malformed_reply(f"{self._client.url}/step", error, pydantic_core.to_json(content))
            ) from error
        if reply.step != self._steps + 1 or reply.reward is None:
            raise self._failed(
                EnvironmentCrashed(f"{self._client.url} answered step {reply.step} with reward {reply.reward}")
            )
        self._check_own(reply, session_id)
        return self._read(reply)

    def _check_own(self, reply: Any, session_id: str) -> None:
        """Something on the way that says a reply twice puts all later ones of its connection out of step."""
        if reply.session_id not in ("", session_id):
            raise self._failed(EnvironmentCrashed(f"{self._client.url} answered for another session"))

    def _read(self, reply: StepReply) -> Step:
        try:
            observation = decode_observation(reply.observation)
        except (ValueError, OSError) as error:  # Pillow's errors are OSErrors
            raise self._failed(
                EnvironmentCrashed(f"{self._client.url} answered an observation that cannot be read: {error}")
            ) from error
        return Step(observation, float(reply.reward or 0.0), reply.terminated, reply.truncated, reply.info)


def _json(body: dict[str, Any]) -> bytes:
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise BadRequest(f"the reset options cannot be sent as JSON: {error}") from error


def _encoded(action: Action) -> bytes:
    """A WireAction as JSON. Raises ValueError or TypeError for what has no JSON, lone surrogates among it."""
    if isinstance(action, str):
        return b'{"text":%s}' % encode_basestring(action).encode()
    return WireAction.of(action).model_dump_json(exclude_defaults=True).encode()
