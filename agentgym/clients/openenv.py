"""Sessions of an environment that an OpenEnv server serves, one that knows nothing of our extension of the protocol.

Its socket has no request ids and its steps no index, so a reply that was lost is never asked for again: the episode is
lost. Where the server lets a session be made before the socket, a socket that dropped between steps is opened anew
onto the same session.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.protocol import State

from agentgym.clients.schema_mapping import Actions, WithoutCapabilities, describe, read_observation
from agentgym.clients.transports.http import FIRST_BACKOFF_S, HttpClient, direct, excerpt, unsent
from agentgym.env import Action
from agentgym.errors import (
    AtCapacity,
    BadRequest,
    ConfigError,
    DeadlineExceeded,
    EnvironmentCrashed,
    EnvironmentFailure,
    EpisodeLost,
    OutOfOrder,
    SessionBusy,
    Unreachable,
)
from agentgym.session import Step
from agentgym.spec import EnvSpec

MAX_MESSAGE = 256 * 2**20
TIMEOUT_S = 60.0
"""Seconds of one request by default: that of OpenEnv's own client, since the server has no deadlines."""
ROOM_S = 1.0
"""A server without room is asked again after so long."""
ATTACHING_S = 2.0
"""A session whose socket just dropped may still count as attached; another one is tried for so long."""
FAILURES = {
    "INVALID_JSON": BadRequest,
    "UNKNOWN_TYPE": BadRequest,
    "VALIDATION_ERROR": BadRequest,
    "EXECUTION_ERROR": EnvironmentCrashed,
    "FACTORY_ERROR": EnvironmentCrashed,
    "CAPACITY_REACHED": AtCapacity,
    "SESSION_ERROR": EpisodeLost,
}


class OpenEnvClient:
    """Sessions of one OpenEnv server, each with a socket of its own."""

    def __init__(self, calls: HttpClient, spec: EnvSpec, actions: Actions, tasks: bool) -> None:
        self.calls, self.spec, self.actions = calls, spec, actions
        self.tasks = tasks
        """The server has tasks to choose from; else a task is a seed."""
        self.resumable = True
        """The server makes sessions before their sockets, as far as we know."""
        self._sessions: set[OpenEnvSession] = set()

    @classmethod
    async def open(
        cls, calls: HttpClient, metadata: Mapping[str, Any], known_spec: Mapping[str, Any], timeout_s: float | None
    ) -> OpenEnvClient:
        """Read what the server says of its environment. `told` are fields of the EnvSpec that it cannot say."""
        calls.timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
        schema = await _json(calls, "GET", "/schema")
        if not isinstance(schema, dict) or not isinstance(schema.get("action"), dict):
            raise ConfigError(
                f"{calls.url} serves {metadata['name']!r} without AgentGym's extension of the protocol, and without "
                "the /schema of an OpenEnv server; serve the environment with `agentgym serve`"
            )
        tools = await _rpc(calls, "tools/list", {})
        listed = tools.get("result", {}).get("tools") if isinstance(tools.get("result"), dict) else None
        splits = await _splits(calls)
        actions = Actions.of(schema["action"], listed or [])
        known_spec = {"step_deadline_s": calls.timeout_s, **known_spec}
        spec = describe(metadata, actions, splits or {"train": 1}, known_spec, calls.url)
        return cls(calls, spec, actions, bool(splits))

    def session(self) -> OpenEnvSession:
        session = OpenEnvSession(self)
        self._sessions.add(session)
        return session

    def forget(self, session: OpenEnvSession) -> None:
        self._sessions.discard(session)

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in list(self._sessions)))

    async def create(self) -> str | None:
        """The id of a new session on the server; None where sessions belong to their sockets."""
        if not self.resumable:
            return None
        reply = await _rpc(self.calls, "openenv/session/create", {})
        result, error = reply.get("result"), reply.get("error")
        if isinstance(result, dict) and isinstance(result.get("session_id"), str):
            return result["session_id"]
        data = error.get("data") if isinstance(error, dict) else None
        message = str(error.get("message")) if isinstance(error, dict) else ""
        if isinstance(data, dict) and "max_sessions" in data:
            raise AtCapacity(f"{self.calls.url}: {message}")
        if isinstance(data, dict) and "factory_name" in data:
            raise EnvironmentCrashed(f"{self.calls.url}: {message}")
        self.resumable = False
        return None


class OpenEnvSession(WithoutCapabilities):
    """One session; the `Session` of `agentgym.session`."""

    server = "an OpenEnv"

    def __init__(self, client: OpenEnvClient) -> None:
        self.spec = client.spec
        self._client = client
        self._url = client.calls.url
        self._id: str | None = None
        self._socket: ClientConnection | None = None
        self._busy = False
        self._playing = False
        self._why_lost = ""

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Step:
        if self._busy:
            raise SessionBusy("this session is still taking a step: await it before the reset")
        body = self._reset_body(seed, dict(options or {}))
        self._playing, self._why_lost = False, "reset failed"
        give_up = time.monotonic() + self._client.calls.capacity_wait_s
        failures = 0
        while True:
            try:
                if self._socket is None or self._socket.state is not State.OPEN:
                    await self._end()
                    self._id = await self._client.create()
                    self._socket = await self._connect()
                reply = await self._exchange("reset", body)
                break
            except AtCapacity:
                await self._end()
                if time.monotonic() + ROOM_S > give_up:
                    raise
                await asyncio.sleep(ROOM_S)
            except (EpisodeLost, Unreachable):  # the server has closed an old socket, or is restarting: begin anew
                await self._end()
                if failures == self._client.calls.retries:
                    raise
                await asyncio.sleep(FIRST_BACKOFF_S * 2**failures)
                failures += 1
        step = self._read(reply)
        self._playing = True
        return step._replace(reward=0.0, terminated=False)

    async def step(self, action: Action) -> Step:
        if self._busy:
            raise SessionBusy("this session is still taking a step: await it before the next")
        if not self._playing:
            lost = EpisodeLost(f"there is no episode ({self._why_lost}): call reset()")
            raise lost if self._why_lost else OutOfOrder("there is no episode: call reset()")
        try:
            body = self._client.actions.encode(action)
        except ValueError as error:  # the agent's mistake, which costs it a turn
            return _invalid(str(error))
        _check_json(body, "the action")
        await self._attached()
        try:
            reply = await self._exchange("step", body)
        except BadRequest as error:  # the action was not executed
            return _invalid(str(error))
        step = self._read(reply)
        if step.terminated:
            self._playing, self._why_lost = False, ""
        return step

    async def close(self) -> None:
        self._client.forget(self)
        self._playing, self._why_lost = False, "the session was closed"
        await self._end()

    def _reset_body(self, seed: int | None, body: dict[str, Any]) -> dict[str, Any]:
        split, task = body.get("split"), body.pop("task", None)
        if split is not None and split not in self.spec.splits:
            raise BadRequest(f"{self.spec.id} has no split {split!r}; it has {', '.join(self.spec.splits)}")
        if task is not None:
            count = self.spec.splits[split if split is not None else next(iter(self.spec.splits))]
            if not isinstance(task, int) or not 0 <= task < count:
                raise BadRequest(f"{self.spec.id} has tasks 0 to {count - 1}, not {task!r}")
        if self._client.tasks:
            if task is not None:
                body |= {"split": split or next(iter(self.spec.splits)), "index": task}
        else:
            body.pop("split", None)
            seed = task if seed is None else seed
        if seed is not None:
            body["seed"] = seed
        _check_json(body, "the reset options")
        return body

    async def _connect(self) -> ClientConnection:
        query = f"?session_id={self._id}" if self._id is not None else ""
        address = f"ws{self._url.removeprefix('http')}/ws{query}"
        try:
            url = httpx.URL(self._url)
            proxy = None if direct(url.host, url.scheme) else True
            headers = self._client.calls.headers
            return await open_socket(
                address, compression=None, max_size=MAX_MESSAGE, proxy=proxy, additional_headers=headers
            )
        except (OSError, InvalidHandshake) as error:
            raise Unreachable(
                f"{address} opens no socket ({type(error).__name__}: {error}); check that the server runs"
            ) from error

    async def _attached(self) -> None:
        """A socket of this session that is open. A new one is tried by asking for the state: failing to attach, the
        server says so only in answer to the first request, which must therefore not be a step."""
        if self._socket is not None and self._socket.state is State.OPEN:
            return
        if self._id is None:
            raise self._lost("the socket dropped, and with it the session")
        give_up = time.monotonic() + ATTACHING_S
        while True:
            try:
                self._socket = await self._connect()
                await self._exchange("state", None)
                self._playing = True
                return
            except (EpisodeLost, Unreachable) as error:
                if time.monotonic() > give_up:
                    raise self._lost(f"the session could not be attached again: {error}") from error
            await asyncio.sleep(FIRST_BACKOFF_S)

    async def _exchange(self, kind: str, data: Any) -> dict[str, Any]:
        """Send a frame and read its reply. Raises what an error frame says; EpisodeLost when no reply came."""
        assert self._socket is not None
        frame = {"type": kind} if data is None else {"type": kind, "data": data}
        message: str | bytes = b""
        self._busy = True
        try:
            async with asyncio.timeout(self._client.calls.timeout_s):
                closed: ConnectionClosed | None = None
                try:
                    await self._socket.send(json.dumps(frame))
                except ConnectionClosed as error:  # a server that refuses a socket says why before it closes it
                    closed = error
                message = await self._socket.recv()
            reply = json.loads(message)
            kind_of_reply, content = reply["type"], reply["data"]
            if closed is not None and kind_of_reply != "error":
                raise closed
            if kind_of_reply == "error":
                raise self._refusal(content)
            if kind_of_reply != ("state" if kind == "state" else "observation") or not isinstance(content, dict):
                raise ValueError(f"a {kind_of_reply} in answer to a {kind}")
            return content
        except TimeoutError as error:  # the next reply on this socket would be this one's
            late = DeadlineExceeded(f"{self._url} did not answer a {kind} in {self._client.calls.timeout_s:g} s")
            raise self._over(late) from error
        except ConnectionClosed as error:
            raise self._lost(f"the socket dropped before the {kind} was answered: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            shown = excerpt(message if isinstance(message, bytes) else message.encode())
            garbage = EnvironmentCrashed(f"{self._url} answered what the protocol forbids ({error}): {shown}")
            raise self._over(garbage) from error
        except BadRequest:
            raise
        except EnvironmentFailure as error:
            raise self._over(error) from None
        except BaseException:  # cancelled: nobody reads the reply
            self._lost("a call was cancelled before its answer")
            raise
        finally:
            self._busy = False

    def _refusal(self, content: dict[str, Any]) -> EnvironmentFailure:
        """Return the error of an error frame. Raises KeyError or TypeError when it says nothing."""
        kind = FAILURES.get(content["code"], EnvironmentCrashed)
        if kind is not BadRequest:
            return kind(f"{self._url}: {content['message']}")
        errors = [error for error in content.get("errors") or () if isinstance(error, dict)]
        details = [f"{'.'.join(map(str, error.get('loc', ())))}: {error.get('msg')}" for error in errors]
        return kind("; ".join([str(content["message"]), *details]))  # for the agent, who knows of no server

    def _read(self, reply: dict[str, Any]) -> Step:
        observation, reward, done = reply.get("observation"), reply.get("reward"), reply.get("done", False)
        if (
            not isinstance(observation, dict)
            or not isinstance(reward, int | float | None)
            or not isinstance(done, bool)
        ):
            shown = excerpt(json.dumps(reply).encode())
            raise self._over(EnvironmentCrashed(f"{self._url} answered no observation: {shown}"))
        text, info = read_observation(observation)
        return Step(text, float(reward or 0.0), done, False, info)

    def _lost(self, why: str) -> EnvironmentFailure:
        return self._over(EpisodeLost(why))

    def _over(self, error: EnvironmentFailure) -> EnvironmentFailure:
        """The episode is over and the socket is not used again: its next reply may be an old one."""
        self._playing, self._why_lost = False, str(error)
        if self._socket is not None:
            self._socket.transport.abort()
        return error

    async def _end(self) -> None:
        """Give socket and session back, as far as the server answers."""
        (socket, self._socket), (session_id, self._id) = (self._socket, None), (self._id, None)
        if socket is not None:
            try:
                async with asyncio.timeout(2.0):
                    if socket.state is State.OPEN:
                        await socket.send('{"type": "close"}')
                    await socket.close()
            except (TimeoutError, ConnectionClosed):
                socket.transport.abort()
        if session_id is not None:
            with contextlib.suppress(Unreachable):
                await _rpc(self._client.calls, "openenv/session/close", {"session_id": session_id}, timeout_s=5.0)


def _check_json(body: Any, what: str) -> None:
    try:
        json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise BadRequest(f"{what} cannot be sent as JSON: {error}") from error


def _invalid(why: str) -> Step:
    return Step(f"Invalid action: {why}", 0.0, False, False, {"valid_action": False})


async def _json(calls: HttpClient, verb: str, path: str, body: Any = None, timeout_s: float | None = None) -> Any:
    """A 200's JSON; None for any other answer, since everything asked this way is optional. Raises Unreachable."""
    content = None if body is None else json.dumps(body).encode()
    failed = 0
    while True:
        try:
            reply = await calls.exchange(verb, path, content, timeout_s or calls.timeout_s, repeatable=False)
            return json.loads(reply.content) if reply.status == 200 else None
        except (OSError, httpx.RequestError) as error:
            if failed == calls.retries or not unsent(error):
                raise Unreachable(
                    f"{calls.url}{path} gave no answer ({type(error).__name__}: {error}); check that the server runs"
                ) from error
        except ValueError:  # no JSON
            return None
        await asyncio.sleep(FIRST_BACKOFF_S * 2**failed)
        failed += 1


async def _rpc(
    calls: HttpClient, method: str, params: Mapping[str, Any], timeout_s: float | None = None
) -> dict[str, Any]:
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    reply = await _json(calls, "POST", "/mcp", request, timeout_s)
    return reply if isinstance(reply, dict) else {}


async def _splits(calls: HttpClient) -> dict[str, int]:
    """Number of tasks by split; empty without the Task API."""
    names = await _json(calls, "GET", "/list_environments")
    if not isinstance(names, list) or len(names) != 1:
        return {}
    listed = await _json(calls, "GET", f"/{names[0]}/splits")
    counts: dict[str, int] = {}
    for split in listed if isinstance(listed, list) else []:
        name = split.get("name") if isinstance(split, dict) else None
        reply = await _json(calls, "POST", f"/{names[0]}/num_tasks", {"split": name})
        count = reply.get("num_tasks") if isinstance(reply, dict) else None
        if isinstance(name, str) and isinstance(count, int) and count > 0:
            counts[name] = count
    return counts
