"""Environments of AgentGym's own servers (github.com/WooooDyy/AgentGym, `agentenv-*`): sessions, and how to name one.

    agentenv+http://host:36001?env=textcraft           (`agentgym.clients.agentenv_table` has the names)
    agentenv+http://host:36001?env=textcraft&tasks=374  when the table does not know how many tasks there are

Their protocol has no index of steps, so an answer that was lost is never asked for again: the episode is lost.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Mapping
from typing import Any

import httpx
from pydantic import ValidationError

from agentgym.clients.agentenv_table import DIALECTS, AgentEnvDialect
from agentgym.clients.schema_mapping import WithoutCapabilities
from agentgym.clients.transports.http import FIRST_BACKOFF_S, HttpClient, excerpt, unsent
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
    UsageError,
)
from agentgym.session import Step
from agentgym.spec import EnvSpec

SCHEME = "agentenv+"
TIMEOUT_S = 300.0
"""Seconds of one request by default: these servers have no deadlines, and some log in to web sites in a reset."""
CLOSE_S = 35.0
LEFTOVERS_S = 5.0
"""A client that closes waits so long for calls that were cancelled on its side."""
GONE = ("is not valid", "has been deleted")
"""Phrases of the errors for an id that the server does not have."""


def is_dialect(url: str) -> bool:
    return url.startswith(SCHEME)


def split_url(url: str) -> tuple[str, Mapping[str, str]]:
    """The server's URL and the options after the question mark. Raises UsageError."""
    try:
        parsed = httpx.URL(url.removeprefix(SCHEME))
    except httpx.InvalidURL as error:
        raise UsageError(f"{url!r} is not a URL: {error}") from error
    options = dict(parsed.params)
    if unknown := sorted(set(options) - {"env", "tasks"}):
        raise UsageError(f"{url!r} has the options {', '.join(unknown)}; there are env and tasks")
    if options.get("env") not in DIALECTS:
        raise UsageError(f"{url!r} needs ?env=NAME, one of {', '.join(DIALECTS)}")
    if not options.get("tasks", "1").isdecimal():
        raise UsageError(f"{url!r}: tasks is a number")
    return str(parsed.copy_with(query=None)), options


class AgentEnvClient:
    """Sessions of one AgentGym server."""

    def __init__(self, calls: HttpClient, dialect: AgentEnvDialect, spec: EnvSpec) -> None:
        self.calls, self.dialect, self.spec = calls, dialect, spec
        self._sessions: set[AgentEnvSession] = set()
        self._taken: set[int] = set()
        self._free: list[int] = []
        """Server sessions to use again, where the server cannot close them."""
        self._leftovers: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(
        cls, calls: HttpClient, options: Mapping[str, str], known_spec: Mapping[str, Any], timeout_s: float | None
    ) -> AgentEnvClient:
        """`options` are the URL's, `known_spec` fields of the EnvSpec that the wire does not have."""
        dialect = DIALECTS[options["env"]]
        calls.timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
        known: dict[str, Any] = {
            "id": dialect.name,
            "description": dialect.description,
            "instructions": dialect.instructions,
            "splits": {name: len(items) for name, items in dialect.splits.items()},
            "max_turns": dialect.max_turns,
            "reward_range": dialect.reward_range,
            "step_deadline_s": calls.timeout_s,
            "deterministic": False,
            "notes": "An AgentGym server does not describe its environment: this is what the dialect's table says.",
        }
        if "tasks" in options:
            known["splits"] = {next(iter(dialect.splits)): int(options["tasks"])}
        try:
            spec = EnvSpec.model_validate({**known, **known_spec})
        except ValidationError as error:
            raise ConfigError(f"{dialect.name} cannot be described as told: {error}") from error
        client = cls(calls, dialect, spec)
        await client.exchange("GET", "/", None, repeatable=True)  # somebody is there
        return client

    def session(self) -> AgentEnvSession:
        session = AgentEnvSession(self)
        self._sessions.add(session)
        return session

    def forget(self, session: AgentEnvSession) -> None:
        self._sessions.discard(session)

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in list(self._sessions)))
        if self._leftovers:
            await asyncio.wait(self._leftovers, timeout=LEFTOVERS_S)
        for task in self._leftovers:
            task.cancel()
        await asyncio.gather(*self._leftovers, return_exceptions=True)

    async def begin(self, number: int, item: int) -> Any:
        """The reply with the first observation of an item."""
        body = {self.dialect.key: number, **self.dialect.reset_body(item)}
        reply = await self.ask("POST", "/reset", body, repeatable=True)
        if self.dialect.observes:
            reply = await self.ask("GET", f"/observation?{self.dialect.key}={number}", None, repeatable=True)
        return reply

    def abandon(self, call: asyncio.Task[Any], number: int | None) -> None:
        """Give the session back once its last call is over; that of a call which opens one is its result."""

        async def clean_up() -> None:
            try:
                result, usable = await call, True
            except EnvironmentFailure:
                result, usable = None, False
            mine = result if number is None else number
            if mine is not None:
                await self.release(mine, usable=usable)

        task = asyncio.ensure_future(clean_up())
        self._leftovers.add(task)
        task.add_done_callback(self._leftovers.discard)

    async def acquire(self, item: int) -> int:
        """The id of a session on the server, a new one unless one is free."""
        if self._free:
            return self._free.pop()
        reply = await self.ask("POST", "/create", self.dialect.create_body(item), repeatable=True)
        try:
            number = self.dialect.read_id(reply)
        except (KeyError, TypeError, ValueError) as error:
            raise EnvironmentCrashed(f"{self.calls.url}/create answered no session: {_shown(reply)}") from error
        if number in self._taken:  # webshop and sqlgym do so when they are full
            raise AtCapacity(f"{self.calls.url} has handed out session {number} twice: it has no room for another")
        self._taken.add(number)
        return number

    async def release(self, number: int, *, usable: bool) -> None:
        """Close a session of the server, or keep it for another of ours where it cannot be closed."""
        dialect = self.dialect
        if not dialect.closes:
            if usable:
                self._free.append(number)
            return  # an unusable one is never used again: its number stays taken
        self._taken.discard(number)
        try:
            await self.ask("POST", "/close", {dialect.key: number}, repeatable=False, timeout_s=CLOSE_S)
        except EnvironmentFailure:  # it is the server's: these servers have no leases, and nobody to tell
            return

    async def ask(self, verb: str, path: str, body: Any, *, repeatable: bool, timeout_s: float | None = None) -> Any:
        """The reply's JSON. Raises EnvironmentFailure for whatever the dialect calls an error."""
        reply = await self.exchange(verb, path, body, repeatable=repeatable, timeout_s=timeout_s)
        where = f"{self.calls.url}{path.partition('?')[0]}"
        if reply.status == 422:
            raise BadRequest(f"{where} refused the request: {excerpt(reply.content)}")
        if reply.status != 200:
            raise EnvironmentCrashed(f"{where} answered {reply.status}: {excerpt(reply.content)}")
        try:
            content = json.loads(reply.content)
        except ValueError as error:
            raise EnvironmentCrashed(f"{where} answered no JSON: {excerpt(reply.content)}") from error
        if isinstance(content, dict) and content.get("error") is not None and path != "/close":
            message = str(content["error"])
            kind = EpisodeLost if any(words in message for words in GONE) else EnvironmentCrashed
            raise kind(f"{where} failed: {message}")
        if isinstance(content, dict) and self.dialect.failed(content):
            raise EnvironmentCrashed(f"{where} failed: {_shown(content)}")
        return content

    async def exchange(
        self, verb: str, path: str, body: Any, *, repeatable: bool, timeout_s: float | None = None
    ) -> Any:
        """One answered request. One that left and was not answered is repeated only where that is harmless."""
        content = None if body is None else json.dumps(body).encode()
        timeout_s = self.calls.timeout_s if timeout_s is None else timeout_s
        failed = 0
        while True:
            try:
                return await self.calls.exchange(verb, path, content, timeout_s, repeatable=repeatable)
            except (OSError, httpx.RequestError) as error:
                what = f"{self.calls.url}{path} ({type(error).__name__}: {error})"
                if isinstance(error, TimeoutError | httpx.TimeoutException) and not unsent(error):
                    raise DeadlineExceeded(f"no answer in {timeout_s:g} s from {what}") from error
                if not repeatable and not unsent(error):
                    raise EpisodeLost(f"the answer was lost, and asking again might act twice: {what}") from error
                if failed >= self.calls.retries:
                    raise Unreachable(
                        f"no answer after {failed + 1} attempts from {what}; check that the server runs"
                    ) from error
            await asyncio.sleep(FIRST_BACKOFF_S * 2**failed)
            failed += 1


class AgentEnvSession(WithoutCapabilities):
    """One session; the `Session` of `agentgym.session`. Its calls are made one after another."""

    server = "an AgentGym"

    def __init__(self, client: AgentEnvClient) -> None:
        self.spec = client.spec
        self._client, self._dialect = client, client.dialect
        self._number: int | None = None
        self._turn = asyncio.Lock()
        self._score = 0.0
        self._playing = False
        self._why_lost = ""

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Step:
        item = self._item(dict(options or {}))
        async with self._turn:
            self._playing, self._why_lost = False, "reset failed"
            try:
                number = self._number
                if number is None:
                    number = self._number = await self._uninterrupted(self._room(item))
                reply = await self._uninterrupted(self._client.begin(number, item))
                text = self._dialect.first_observation(reply)
                if not isinstance(text, str):
                    raise TypeError(text)
            except (KeyError, TypeError, ValueError, IndexError) as error:
                raise await self._failed(self._garbage("reset", error)) from error
            except EnvironmentFailure as error:
                raise await self._failed(error) from error
            self._playing, self._score = True, 0.0
        return Step(text, 0.0, False, False, {})

    async def step(self, action: Action) -> Step:
        if self._turn.locked():
            raise SessionBusy("this session is still taking a step: await it before the next")
        async with self._turn:
            if not self._playing:
                lost = EpisodeLost(f"there is no episode ({self._why_lost}): call reset()")
                raise lost if self._why_lost else OutOfOrder("there is no episode: call reset()")
            text = action if isinstance(action, str) else self._dialect.tool_text(action["name"], action["arguments"])
            try:
                text.encode()
                text = self._dialect.prepare(text)
            except UnicodeEncodeError as error:
                raise BadRequest(f"the action cannot be sent as JSON: {error}") from error
            except ValueError as error:  # the agent's mistake, which costs it a turn and the server nothing
                return Step(str(error), 0.0, False, False, {"valid_action": False})
            body = {self._dialect.key: self._number, "action": text}
            try:
                reply = await self._uninterrupted(self._client.ask("POST", "/step", body, repeatable=False))
                return self._read(reply)
            except (KeyError, TypeError, ValueError) as error:
                raise await self._failed(self._garbage("step", error)) from error
            except EnvironmentFailure as error:
                raise await self._failed(error) from error

    async def close(self) -> None:
        self._client.forget(self)
        async with self._turn:
            self._playing, self._why_lost = False, "the session was closed"
            await self._give_back(usable=True)

    async def _room(self, item: int) -> int:
        give_up = time.monotonic() + self._client.calls.capacity_wait_s
        while True:
            try:
                return await self._client.acquire(item)
            except AtCapacity:
                if time.monotonic() + 1.0 > give_up:
                    raise
            await asyncio.sleep(1.0)

    def _item(self, options: dict[str, Any]) -> int:
        split, task = options.pop("split", None), options.pop("task", 0)
        if options:
            raise BadRequest(f"{self.spec.id} has no reset options {', '.join(options)}; there are split and task")
        split = next(iter(self.spec.splits)) if split is None else split
        if split not in self.spec.splits:
            raise BadRequest(f"{self.spec.id} has no split {split!r}; it has {', '.join(self.spec.splits)}")
        if not isinstance(task, int) or not 0 <= task < self.spec.splits[split]:
            raise BadRequest(f"{self.spec.id} has tasks 0 to {self.spec.splits[split] - 1} in {split!r}, not {task!r}")
        items = self._dialect.splits.get(split)
        return task if items is None else items.start + task

    def _read(self, reply: dict[str, Any]) -> Step:
        dialect = self._dialect
        text, score = dialect.step_observation(reply), float(reply[dialect.reward_key])
        truncated = reply.get("truncated") is True
        done = reply["terminated"] if dialect.ends == "terminated" else reply["done"]
        if not isinstance(text, str) or not isinstance(done, bool):
            raise TypeError(f"an observation {text!r} and an end {done!r}")
        if dialect.ends == "terminated" and not done:
            score = 0.0
        reward = score - self._score if dialect.cumulative else score
        self._score = score
        if done or truncated:
            self._playing, self._why_lost = False, ""
        return Step(text, reward, done, truncated and not done, {})

    def _garbage(self, verb: str, error: Exception) -> EnvironmentCrashed:
        return EnvironmentCrashed(
            f"{self._client.calls.url}/{verb} answered what {self._dialect.name} does not: {error!r}"
        )

    async def _failed(self, error: EnvironmentFailure) -> EnvironmentFailure:
        """Return the error to raise; the episode is over, and so is the server's session unless the request was at
        fault."""
        self._playing, self._why_lost = False, str(error)
        if not isinstance(error, BadRequest):
            await self._give_back(usable=False)
        return error

    async def _uninterrupted(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Wait for a call. It goes on when nobody waits any more: the server's session is given back after it."""
        task = asyncio.ensure_future(call)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._client.abandon(task, self._number)
            self._playing, self._why_lost, self._number = False, "a call was cancelled before its answer", None
            raise

    async def _give_back(self, *, usable: bool) -> None:
        number, self._number = self._number, None
        if number is not None:
            await self._client.release(number, usable=usable)


def _shown(content: Any) -> str:
    return excerpt(json.dumps(content).encode())
