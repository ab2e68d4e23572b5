"""A session of a server: it applies every step exactly once, however often asked."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from agentgym.env import Action
from agentgym.errors import BadRequest, EnvironmentFailure, OutOfOrder, SessionBusy
from agentgym.protocol import ResetRequest, SessionReply, StepRequest, Verb
from agentgym_servers.env_server.workers.env_call import ServedEnv, StepResult
from agentgym_servers.env_server.workers.worker import Worker
from agentgym_servers.web.encoding import answered, extended
from agentgym_servers.web.metrics import Latencies, Metrics

MAX_KEPT = 1024
"""Characters of an action that are kept; of a longer one, its digest is."""
MAX_KEPT_REPLIES = 4 * 2**20
"""Bytes of an episode's kept replies; the last one is kept whatever its size."""
MAX_PAST_EPISODES = 64
"""Number of ended episodes of a session remembered, so that a late duplicate of their reset begins nothing."""


@dataclass
class _Running:
    """The call that a session is making now. Asked for again, it is joined."""

    kind: str
    key: Any
    task: asyncio.Task[Any]


class _Digest(NamedTuple):
    """The part of a long action that is kept."""

    sha256: bytes
    excerpt: str


class _StepRequest(NamedTuple):
    """A step as it was asked for."""

    index: int
    action: Action | _Digest
    request_id: str | None

    def again(self, index: int | None, request_id: str | None) -> bool:
        """Return whether a request without doubt means this step: by its index, or else by its request id."""
        return index == self.index if index is not None else request_id is not None and request_id == self.request_id


@dataclass
class _Episode:
    id: str
    arguments: bytes
    """Digest of its reset's arguments: a reset asked again must match."""
    reply: bytes = b""
    steps: int = 0
    done: bool = False
    answered: deque[tuple[_StepRequest, bytes]] = field(default_factory=deque)
    """The last few steps and their replies, oldest first."""


class SessionOwner(Protocol):
    """The part of the session table that a session uses."""

    metrics: Metrics
    clock: Callable[[], float]
    replies_kept: int
    episodes: dict[tuple[str, str], ServerSession]

    def worker(self, env: ServedEnv, lost: Callable[[EnvironmentFailure], None]) -> Worker:
        """Return the worker in which the session's environment runs. `lost` is called when it is gone."""
        ...

    def end(self, session: ServerSession, why: str, cause: str) -> None:
        """Close the session and remember why."""
        ...

    def discard(self, session: ServerSession) -> None:
        """Drop a session whose id nobody knows."""
        ...


class ServerSession:
    """One open environment. Its methods return reply bodies, or a task that will; they raise EnvironmentFailure."""

    def __init__(self, env: ServedEnv, table: SessionOwner, address: str) -> None:
        self.id = secrets.token_hex(16)
        self.address = address
        """The address that opened it."""
        self.env = env
        self.worker = table.worker(env, self._failed)
        self.metrics = table.metrics.envs[env.name]
        self._long = MAX_KEPT_REPLIES // max(1, table.replies_kept)
        """Bytes of a reply that may be too long to keep beside the others of its episode."""
        self.used = table.clock()
        self.evictable = False
        """It was opened without an `episode_id` and never asked for again: its place may be given to another."""
        self.episode: _Episode | None = None
        self.running: _Running | None = None
        self._table = table
        self._past: deque[str] = deque(maxlen=MAX_PAST_EPISODES)
        self._pending_id: str | None = None
        self._given = False
        """Somebody has been told this session's id."""

    def pin(self) -> None:
        """Somebody knows the session's id before its first episode: a reset that fails must not discard it."""
        self._given = True

    def reset(self, request: ResetRequest) -> bytes | asyncio.Task[bytes]:
        """Begin an episode. With the present episode's `episode_id`, its stored reply again."""
        arguments = (request.seed, request.options())
        return self._begin("reset", request.episode_id, _digest(arguments), arguments)

    def restore(self, state: bytes, seed: int | None, episode_id: str | None) -> bytes | asyncio.Task[bytes]:
        """Begin in the state of a snapshot, at step 0, with its chance or another."""
        return self._begin("restore", episode_id, _digest(seed, state), (state, seed))

    def step(self, request: StepRequest, action: Action) -> bytes | asyncio.Task[bytes]:
        """Apply a step, replay the reply of one applied before, or join the one that is running."""
        running, episode, index = self.running, self.episode, request.step
        if request.episode_id is not None and request.episode_id not in (self._pending_id, self._episode_id()):
            raise OutOfOrder(f"the step is of episode {request.episode_id!r}, which is not this session's present one")
        if running is not None and running.kind == "step" and running.key.again(index, request.request_id):
            _same(running.key, _kept(action))
            return running.task
        if episode is not None and ((index is not None and index < episode.steps) or request.request_id is not None):
            reply = self._replay(episode, index, request.request_id, action)
            if reply is not None:
                return reply
        if running is not None:
            raise SessionBusy(f"the session is running a {running.kind}; ask again when it has answered")
        if episode is None:
            raise OutOfOrder("the session has no episode: POST /reset first")
        if index is not None and index > episode.steps:
            raise OutOfOrder(f"step {index} was asked for and the next is {episode.steps}; ask for that one first")
        if episode.done:
            raise OutOfOrder(f"the episode ended after {episode.steps} steps: POST /reset begins another")
        step_request = _StepRequest(episode.steps, _kept(action), request.request_id)
        if self.worker.inline:
            return self._step_now(episode, step_request, action)
        deadline_s = min(self.env.spec.step_deadline_s, request.timeout_s or float("inf"))
        return self._run("step", step_request, self._step(episode, step_request, action, deadline_s))

    def query(self, verb: Verb) -> asyncio.Task[Any]:
        """Return a query's value, encoded. Raises BadRequest when the environment lacks the capability."""
        if verb.capability is not None:
            self.env.require(verb.capability)
        if self.running is not None:
            raise SessionBusy(f"the session is running a {self.running.kind}; ask again when it has answered")
        if self.episode is None:
            raise OutOfOrder("the session has no episode: POST /reset first")
        return self._run(verb.name, None, self._call(verb.name))

    def episode_ids(self) -> list[str]:
        """The episodes this session has been in, as far as it remembers, and the present one."""
        return [*self._past, *(() if self.episode is None else (self.episode.id,))]

    def _begin(self, kind: str, episode_id: str | None, arguments: bytes, call: Any) -> bytes | asyncio.Task[bytes]:
        if self.running is not None:
            if self.running.kind == kind and episode_id is not None and self.running.key[0] == episode_id:
                self._same_beginning(episode_id, arguments, self.running.key[1])
                return self.running.task
            raise SessionBusy(f"the session is running a {self.running.kind}; ask again when it has answered")
        if episode_id is not None:
            if self.episode is not None and self.episode.id == episode_id:
                self._same_beginning(episode_id, arguments, self.episode.arguments)
                return self.episode.reply
            if episode_id in self._past:
                raise OutOfOrder(f"episode {episode_id!r} is over and another has begun; give a new episode a new id")
        episode = _Episode(
            episode_id or secrets.token_hex(8), arguments, answered=deque(maxlen=self._table.replies_kept)
        )
        if self.episode is not None:  # whatever becomes of the reset, the old episode is over
            if len(self._past) == MAX_PAST_EPISODES:
                self._table.episodes.pop((self.env.name, self._past[0]), None)
            self._past.append(self.episode.id)
            self.episode = None
        self.evictable = episode_id is None and not self._given
        self._table.episodes[self.env.name, episode.id] = self
        if self.worker.inline:
            return self._start_now(kind, episode, call)
        self._pending_id = episode.id
        return self._run(kind, (episode.id, arguments), self._start(kind, episode, call))

    async def _start(self, kind: str, episode: _Episode, call: Any) -> bytes:
        began = time.perf_counter()
        try:
            answer = await self._call(kind, *call)
        except BaseException:
            self._not_begun(episode)
            raise
        finally:
            self._pending_id = None
        return self._begun(kind, episode, answer, began)

    def _start_now(self, kind: str, episode: _Episode, call: Any) -> bytes:
        began = time.perf_counter()
        try:
            answer = self.worker.call_now(kind, *call)
        except EnvironmentFailure as error:
            self._failed(error)
            self._not_begun(episode)
            raise
        return self._begun(kind, episode, answer, began)

    def _not_begun(self, episode: _Episode) -> None:
        self._table.episodes.pop((self.env.name, episode.id), None)
        if not self._given:
            self._table.discard(self)

    def _begun(self, kind: str, episode: _Episode, answer: Any, began: float) -> bytes:
        if kind == "restore":
            episode.reply = SessionReply(session_id=self.id).model_dump_json().encode()
        else:
            episode.reply = self._reply(answer, 0, began, self.metrics.resets)
            episode.done = answer.done
        self.episode, self._given = episode, True
        return episode.reply

    async def _step(self, episode: _Episode, step_request: _StepRequest, action: Action, deadline_s: float) -> bytes:
        began = time.perf_counter()
        answer = await self._call("step", action, deadline_s=deadline_s)
        return self._stepped(episode, step_request, answer, began)

    def _step_now(self, episode: _Episode, step_request: _StepRequest, action: Action) -> bytes:
        began = time.perf_counter()
        try:
            answer = self.worker.call_now("step", action)
        except EnvironmentFailure as error:
            self._failed(error)
            raise
        return self._stepped(episode, step_request, answer, began)

    def _stepped(self, episode: _Episode, step_request: _StepRequest, answer: StepResult, began: float) -> bytes:
        reply = self._reply(answer, episode.steps + 1, began, self.metrics.steps)
        if step_request.request_id is not None:
            reply = extended(reply, {"request_id": step_request.request_id})
        episode.answered.append((step_request, reply))
        if len(reply) > self._long:
            _shorten(episode.answered)
        episode.steps += 1
        episode.done = answer.done
        return reply

    def _reply(self, answer: StepResult, steps: int, began: float, latencies: Latencies) -> bytes:
        seconds = time.perf_counter() - began
        latencies.observe(seconds)
        return answered(answer.body, self.id, steps, 1000 * seconds)

    def _replay(self, episode: _Episode, index: int | None, request_id: str | None, action: Action) -> bytes | None:
        for earlier, reply in episode.answered:
            if earlier.again(index, request_id):
                _same(earlier, _kept(action))
                return reply
        if index is None or index >= episode.steps:
            return None
        raise OutOfOrder(
            f"step {index} was answered long ago and its reply is no longer kept; the next is {episode.steps}"
        )

    def _same_beginning(self, episode_id: str, arguments: bytes, before: bytes) -> None:
        if arguments != before:
            raise OutOfOrder(
                f"episode {episode_id!r} was already begun with another seed or options; give a new episode a new id"
            )

    def _episode_id(self) -> str | None:
        return self.episode.id if self.episode is not None else None

    def _run(self, kind: str, key: Any, call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Make a call in a task of its own: whoever asked may go away, the call goes on and can be joined."""

        async def run() -> Any:
            try:
                return await call
            finally:
                self.running = None
                self.used = self._table.clock()

        task = asyncio.get_running_loop().create_task(run())
        self.running = _Running(kind, key, task)
        task.add_done_callback(_see)
        return task

    async def _call(self, method: str, *arguments: Any, deadline_s: float | None = None) -> Any:
        try:
            return await self.worker.call(method, *arguments, deadline_s=deadline_s or self.env.spec.step_deadline_s)
        except EnvironmentFailure as error:
            self.metrics.errors[error.code] += 1
            self._failed(error)
            raise

    def _failed(self, error: EnvironmentFailure) -> None:
        """A request that was wrong leaves the session as it was; any other failure ends it."""
        if not isinstance(error, BadRequest):
            self._table.end(self, f"its environment failed ({error.code}: {error})", error.code)


_encode_sorted = json.JSONEncoder(sort_keys=True, default=repr).encode


def _digest(arguments: Any, state: bytes = b"") -> bytes:
    text = _encode_sorted(arguments)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass") + b"\0" + state).digest()


def _shorten(answered: deque[tuple[_StepRequest, bytes]]) -> None:
    """Drop the oldest replies beyond `MAX_KEPT_REPLIES` bytes."""
    size = sum(len(reply) for _, reply in answered)
    while len(answered) > 1 and size > MAX_KEPT_REPLIES:
        size -= len(answered.popleft()[1])


def _kept(action: Action) -> Action | _Digest:
    """Return what a session keeps of an action: all of it, or a digest."""
    if isinstance(action, str) and len(action) <= MAX_KEPT:
        return action
    text = _encode_sorted(action)
    return action if len(text) <= MAX_KEPT else _Digest(_digest(action), text[:80])


def _same(earlier: _StepRequest, action: Action | _Digest) -> None:
    if action != earlier.action:
        before = earlier.action
        excerpt = before.excerpt if isinstance(before, _Digest) else json.dumps(before)[:80]
        raise OutOfOrder(
            f"step {earlier.index} was already asked for with another action ({excerpt}); "
            "a retry must repeat the action"
        )


def _see(task: asyncio.Task[Any]) -> None:
    """An exception counts as seen even when whoever asked has gone away."""
    if not task.cancelled():
        task.exception()
