"""Worlds behind a URL, and `connect`: one way to sessions of a world however it is named.

async with connect("http://127.0.0.1:8000") as world:   # or "sokoban", or "my_package.world:MyWorld"
    session = world.session()
    step = await session.reset(options={"split": "train", "task": 0})
    while not (step.terminated or step.truncated):
        step = await session.step(await session.expert())
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any, Protocol

import httpx
from pydantic import ValidationError

from agentgym import load
from agentgym.calls import Ask, Calls, Lane
from agentgym.env import Action
from agentgym.errors import (
    BadRequest,
    ConfigError,
    DeadlineExceeded,
    EnvironmentCrashed,
    EnvironmentFailure,
    EpisodeLost,
    OutOfOrder,
    SessionBusy,
    UnknownSession,
    UsageError,
)
from agentgym.launch import server_process
from agentgym.session import LocalSession, Session, Step
from agentgym.spec import EnvSpec
from agentgym.wire import (
    ActionReply,
    Answer,
    HintReply,
    RestoreRequest,
    SessionReply,
    SessionRequest,
    SnapshotReply,
    StepManyReply,
    StepReply,
    StepRequest,
    WireAction,
    WireError,
    decode_observation,
)

__all__ = ["Connection", "EnvClient", "LocalClient", "RemoteSession", "connect", "server_process"]

TIMEOUT_MARGIN_S = 10.0
"""A request may take this much longer than the world's own deadline."""
RESETS_AT_ONCE = 8
BATCH = 512
"""Most steps of one request."""
PATIENCE_S = 0.005
WAIT_S = 0.02
"""Once one step of a batch is answered, the others get this long; later ones are asked for again."""


class Connection(Protocol):
    """A way to sessions of one world."""

    @property
    def spec(self) -> EnvSpec: ...

    def session(self) -> Session:
        """A new session: its world is opened by its first `reset` or `restore`. Close it when done."""
        ...


class _Extra(Answer):
    protocol: str
    spec: dict[str, Any]
    extensions: list[str] = []


class _Metadata(Answer):
    name: str
    agentgym: _Extra | None = None


class EnvClient:
    """Sessions of the world at `url`: a server's root (its first world) or `.../envs/NAME`. Use it with `async with`.

    Steps of many sessions that are asked for at the same time travel in one request. `timeout_s` is for one request;
    by default the world's own deadline and ten seconds. A failed connection is tried again `retries` times, a server
    without room is asked again for `capacity_wait_s`. `transport` replaces the network: `httpx.ASGITransport(app)`.
    """

    def __init__(
        self,
        url: str,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        timeout_s: float | None = None,
        retries: int = 5,
        capacity_wait_s: float = 60.0,
    ) -> None:
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self.calls = Calls(
            self.url,
            transport=transport,
            timeout_s=TIMEOUT_MARGIN_S if timeout_s is None else timeout_s,
            retries=retries,
            capacity_wait_s=capacity_wait_s,
        )
        self._spec: EnvSpec | None = None
        self._many = False
        self._fast = Lane(self._send, patience_s=PATIENCE_S, largest=BATCH)
        self._slow = Lane(self._send, patience_s=PATIENCE_S, largest=BATCH)
        self._sessions: set[RemoteSession] = set()
        self.openings = asyncio.Semaphore(RESETS_AT_ONCE)
        self.resets = asyncio.Semaphore(RESETS_AT_ONCE)
        """Two, so that sessions that wait for room do not hold up the resets of those that have it."""

    async def __aenter__(self) -> EnvClient:
        try:
            await self.fetch_spec()
        except BaseException:
            await self.calls.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def spec(self) -> EnvSpec:
        """The world's EnvSpec, once `async with` or `fetch_spec` has read it."""
        if self._spec is None:
            raise UsageError("the client is not connected yet: use `async with EnvClient(url) as client`")
        return self._spec

    async def fetch_spec(self) -> EnvSpec:
        """Read the world's EnvSpec from the server. Raises Unreachable, or ConfigError for a world we cannot drive."""
        if self._spec is None:
            metadata = await self.calls.get("/metadata", _Metadata)
            if metadata.agentgym is None:
                raise ConfigError(
                    f"{self.url} serves {metadata.name!r} without AgentGym's extension of the protocol; serve the "
                    "world with `agentgym serve`"
                )
            if metadata.agentgym.protocol != "1":
                raise ConfigError(f"{self.url} speaks protocol {metadata.agentgym.protocol}, this client 1; update it")
            self._many = "step_many" in metadata.agentgym.extensions
            known = {key: value for key, value in metadata.agentgym.spec.items() if key in EnvSpec.model_fields}
            try:
                self._spec = EnvSpec.model_validate(known)
            except ValidationError as error:
                raise ConfigError(
                    f"{self.url} describes its world in a way this client cannot read: {error}"
                ) from error
            if self._timeout_s is None:
                self.calls.timeout_s = self._spec.step_deadline_s + TIMEOUT_MARGIN_S
        return self._spec

    def session(self) -> RemoteSession:
        """A new session: the server opens it at its first `reset` or `restore`."""
        session = RemoteSession(self)
        self._sessions.add(session)
        return session

    def forget(self, session: RemoteSession) -> None:
        self._sessions.discard(session)

    async def close(self) -> None:
        """Close the sessions that are still open, as far as the server answers, and the connections."""
        await self._fast.close()
        await self._slow.close()
        for session in list(self._sessions):
            if not await session.end():
                break  # no answer: the leases of the others will run out
        self._sessions.clear()
        await self.calls.close()

    async def step(self, request: StepRequest) -> StepReply:
        """One step, together with whatever else is asked for now."""
        try:
            body = request.model_dump_json(exclude_none=True).encode()
        except ValueError as error:
            raise BadRequest(f"the action cannot be sent as JSON: {error}") from error
        ask = Ask(body)
        self._fast.put(ask)
        return await ask.answer

    async def _send(self, batch: list[Ask]) -> None:
        if len(batch) == 1 or not self._many:
            await asyncio.gather(*(self._send_one(ask) for ask in batch))
            return
        body = b'{"steps":[%s],"wait_s":%g}' % (b",".join(ask.body for ask in batch), WAIT_S)
        reply = await self.calls.post("/step_many", body, StepManyReply)
        if len(reply.results) != len(batch):
            raise EnvironmentCrashed(f"{self.url} answered {len(reply.results)} of {len(batch)} steps")
        for ask, answer in zip(batch, reply.results):
            if answer is None:  # still running: ask again, apart from the quick ones
                self._slow.put(ask)
            else:
                ask.settle(answer.exception() if isinstance(answer, WireError) else answer)

    async def _send_one(self, ask: Ask) -> None:
        try:
            ask.settle(await self.calls.post("/step", ask.body, StepReply))
        except EnvironmentFailure as error:
            ask.settle(error)


class RemoteSession:
    """One session of a server's world; the `Session` of `agentgym.session`.

    An episode that is lost stays lost: every step raises EpisodeLost until the caller resets.
    """

    def __init__(self, client: EnvClient) -> None:
        self.spec = client.spec
        self._client = client
        self._id: str | None = None
        self._episode_id: str | None = None
        self._steps = 0
        self._stepping = False
        self._why_lost = ""

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Step:
        body = dict(options or {})
        if reserved := sorted({"seed", "episode_id", "session_id", "index"} & set(body)):
            raise BadRequest(f"{', '.join(reserved)} cannot be a reset option; a task is chosen by `task` and `split`")
        if "task" in body:
            body["index"] = body.pop("task")
        body |= {"seed": seed, "episode_id": uuid.uuid4().hex}
        reply = await self._begin("/reset", {key: value for key, value in body.items() if value is not None}, StepReply)
        return self._read(reply)

    async def step(self, action: Action) -> Step:
        if self._stepping:
            raise SessionBusy("this session is still taking a step: await it before the next")
        request = StepRequest(
            session_id=self._session_id(), action=WireAction.of(action), step=self._steps, episode_id=self._episode_id
        )
        self._stepping = True
        try:
            reply = await self._client.step(request)
        except EnvironmentFailure as error:
            raise self._failed(error) from error
        finally:
            self._stepping = False
        if reply.step != self._steps + 1 or reply.reward is None:
            raise self._failed(
                EnvironmentCrashed(f"{self._client.url} answered step {reply.step} with reward {reply.reward}")
            )
        self._steps = reply.step
        return self._read(reply)

    async def expert(self) -> Action:
        reply = await self._ask("/expert", ActionReply)
        try:
            return reply.action.value()
        except ValueError as error:
            raise EnvironmentCrashed(f"{self._client.url}/expert answered no action: {error}") from error

    async def hint(self) -> str:
        return (await self._ask("/hint", HintReply)).hint

    async def snapshot(self) -> bytes:
        reply = await self._ask("/snapshot", SnapshotReply)
        try:
            return base64.b64decode(reply.snapshot, validate=True)
        except ValueError as error:
            raise EnvironmentCrashed(f"{self._client.url}/snapshot answered no base64: {error}") from error

    async def restore(self, state: bytes) -> None:
        """Continue from a snapshot of this world, also another session's: the server opens a new session for it."""
        await self.end()
        request = RestoreRequest(snapshot=base64.b64encode(state).decode(), episode_id=uuid.uuid4().hex)
        await self._begin("/restore", request.model_dump(), SessionReply)

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
            await self._client.calls.post("/close", body, SessionReply, retries=1, timeout_s=5.0)
        except (EpisodeLost, UnknownSession):  # gone already, which is what was wanted
            return True
        except EnvironmentFailure:
            return False
        return True

    async def _begin(self, path: str, body: dict[str, Any], model: type[Any]) -> Any:
        self._episode_id, self._why_lost = None, f"{path[1:]} failed"
        try:
            reply = await self._post_begin(path, body, model)
        except (EpisodeLost, UnknownSession):  # a new episode may as well begin in a new session
            self._id = None
            reply = await self._post_begin(path, body, model)
        except EnvironmentFailure as error:
            raise self._failed(error) from error
        if not reply.session_id:
            raise self._failed(EnvironmentCrashed(f"{self._client.url}{path} answered without a session_id"))
        self._id, self._episode_id, self._steps = reply.session_id, body["episode_id"], 0
        return reply

    async def _post_begin(self, path: str, body: dict[str, Any], model: type[Any]) -> Any:
        if self._id is not None:
            body = {**body, "session_id": self._id}
        try:
            encoded = json.dumps(body, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise BadRequest(f"the reset options cannot be sent as JSON: {error}") from error
        async with self._client.openings if self._id is None else self._client.resets:
            return await self._client.calls.post(path, encoded, model)

    async def _ask(self, path: str, model: type[Any]) -> Any:
        body = SessionRequest(session_id=self._session_id()).model_dump_json().encode()
        try:
            return await self._client.calls.post(path, body, model)
        except EnvironmentFailure as error:
            raise self._failed(error) from error

    def _session_id(self) -> str:
        """The session in its episode. Raises OutOfOrder before the first one, EpisodeLost after a lost one."""
        if self._id is None or self._episode_id is None:
            lost = EpisodeLost(f"there is no episode ({self._why_lost}): call reset()")
            raise lost if self._why_lost else OutOfOrder("there is no episode yet: call reset()")
        return self._id

    def _failed(self, error: EnvironmentFailure) -> EnvironmentFailure:
        """What to raise for it; unless the request was at fault, the episode is over."""
        if isinstance(error, UnknownSession):
            error = EpisodeLost(f"the server does not know the session; was it restarted? ({error})")
        if isinstance(error, EpisodeLost | EnvironmentCrashed | DeadlineExceeded):
            self._id, self._episode_id, self._why_lost = None, None, str(error)
        return error

    def _read(self, reply: StepReply) -> Step:
        try:
            observation = decode_observation(reply.observation)
        except (ValueError, OSError) as error:  # Pillow's errors are OSErrors
            raise self._failed(
                EnvironmentCrashed(f"{self._client.url} answered an observation that cannot be read: {error}")
            ) from error
        return Step(observation, float(reply.reward or 0.0), reply.terminated, reply.truncated, reply.info)


class LocalClient:
    """Sessions of a world in this process, each an instance of its own."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        self._name, self._kwargs = name, kwargs
        self._first: LocalSession | None = LocalSession(load.make(name, **kwargs))
        self.spec = self._first.spec
        self._sessions = [self._first]

    def session(self) -> LocalSession:
        if self._first is not None:
            session, self._first = self._first, None
        else:
            session = LocalSession(load.make(self._name, **self._kwargs))
            self._sessions = [kept for kept in self._sessions if not kept.closed]
            self._sessions.append(session)
        return session

    async def close(self) -> None:
        """Close every session. Raises the first failure once all have been tried."""
        for result in await asyncio.gather(*(s.close() for s in self._sessions), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result


@contextlib.asynccontextmanager
async def connect(name_or_url: str, **kwargs: Any) -> AsyncIterator[Connection]:
    """Sessions of a world named in any of the three ways: an id, "package.module:Class", or a server's URL.

    `kwargs` are the world's constructor's, or for a URL `EnvClient`'s. Sessions still open at the end are closed.
    Raises UnknownEnvironment, MissingDependency or Unreachable.
    """
    if "://" in name_or_url:
        async with EnvClient(name_or_url, **kwargs) as client:
            yield client
        return
    local = LocalClient(name_or_url, **kwargs)
    try:
        yield local
    finally:
        await local.close()
