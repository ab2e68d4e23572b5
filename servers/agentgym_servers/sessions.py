"""Sessions: each applies every step exactly once, however often asked; the table holds them while their lease runs."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from agentgym.env import Action
from agentgym.errors import (
    AtCapacity,
    BadRequest,
    EnvironmentFailure,
    EpisodeLost,
    OutOfOrder,
    SessionBusy,
    UnknownSession,
)
from agentgym.wire import ResetRequest, SessionReply, StepRequest
from agentgym_servers.worker import Worker
from agentgym_servers.world import Answer, World

GRAVES_KEPT = 10_000
"""Ended sessions remembered, so that asking for one says why it is gone."""
EPISODES_KEPT = 64
"""Past episodes of a session remembered, so that a late duplicate of their reset begins nothing."""


@dataclass
class _Running:
    """The call that a session is making now. Asked for again, it is joined."""

    kind: str
    key: Any
    task: asyncio.Task[Any]


@dataclass
class _Episode:
    id: str
    arguments: Any
    """What it was begun with: a reset asked again must match."""
    reply: bytes = b""
    steps: int = 0
    done: bool = False
    answered: deque[tuple[int, Action, bytes]] = field(default_factory=deque)
    """The last few steps' index, action and reply, oldest first."""


class Session:
    """One open world. Its methods return reply bodies, or a task that will; they raise EnvironmentFailure."""

    def __init__(self, world: World, table: Sessions) -> None:
        self.id = secrets.token_hex(16)
        self.world = world
        self.worker = Worker(world)
        self.used = table.clock()
        self.episode: _Episode | None = None
        self.running: _Running | None = None
        self._table = table
        self._past: deque[str] = deque(maxlen=EPISODES_KEPT)
        self._pending_id: str | None = None
        self._given = False
        """Somebody has been told this session's id."""

    def reset(self, request: ResetRequest) -> bytes | asyncio.Task[bytes]:
        """Begin an episode. With the present episode's `episode_id`, its stored reply again."""
        arguments = (request.seed, request.options())
        return self._begin("reset", request.episode_id, arguments, arguments)

    def restore(self, state: bytes, episode_id: str | None) -> bytes | asyncio.Task[bytes]:
        """Begin in the state of a snapshot, at step 0."""
        return self._begin("restore", episode_id, state, (state,))

    def step(self, request: StepRequest, action: Action) -> bytes | asyncio.Task[bytes]:
        """Apply a step, replay the reply of one applied before, or join the one that is running."""
        running, index = self.running, request.step
        if request.episode_id is not None and request.episode_id not in (self._pending_id, self._episode_id()):
            raise OutOfOrder(f"the step is of episode {request.episode_id!r}, which is not this session's present one")
        if running is not None and running.kind == "step" and index is not None and index == running.key[0]:
            self._same(index, action, running.key[1])
            return running.task
        episode = self.episode
        if episode is not None and index is not None and index < episode.steps:
            return self._replay(episode, index, action)
        if running is not None:
            raise SessionBusy(f"the session is running a {running.kind}; ask again when it has answered")
        if episode is None:
            raise OutOfOrder("the session has no episode: POST /reset first")
        if index is not None and index > episode.steps:
            raise OutOfOrder(f"step {index} was asked for and the next is {episode.steps}; ask for that one first")
        if episode.done:
            raise OutOfOrder(f"the episode ended after {episode.steps} steps: POST /reset begins another")
        if self.worker.inline:
            return self._step_now(episode, action)
        deadline_s = min(self.world.spec.step_deadline_s, request.timeout_s or float("inf"))
        return self._run("step", (index, action), self._step(episode, action, deadline_s))

    def ask(self, method: str, capability: str) -> asyncio.Task[Any]:
        """`expert`, `hint` or `snapshot` of the present state. Raises BadRequest when the world has no such thing."""
        self.world.require(capability)
        if self.running is not None:
            raise SessionBusy(f"the session is running a {self.running.kind}; ask again when it has answered")
        if self.episode is None:
            raise OutOfOrder("the session has no episode: POST /reset first")
        return self._run(method, None, self._call(method))

    def episode_ids(self) -> list[str]:
        """The episodes this session has been in, as far as it remembers, and the present one."""
        return [*self._past, *(() if self.episode is None else (self.episode.id,))]

    def _begin(self, kind: str, episode_id: str | None, arguments: Any, call: Any) -> bytes | asyncio.Task[bytes]:
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
            if len(self._past) == EPISODES_KEPT:
                self._table.episodes.pop((self.world.name, self._past[0]), None)
            self._past.append(self.episode.id)
            self.episode = None
        self._pending_id = episode.id
        self._table.episodes[self.world.name, episode.id] = self
        return self._run(kind, (episode.id, arguments), self._start(kind, episode, call))

    async def _start(self, kind: str, episode: _Episode, call: Any) -> bytes:
        began = time.perf_counter()
        try:
            answer = await self._call(kind, *call)
        except BaseException:
            self._table.episodes.pop((self.world.name, episode.id), None)
            if not self._given:
                self._table.discard(self)
            raise
        finally:
            self._pending_id = None
        if kind == "restore":
            episode.reply = SessionReply(session_id=self.id).model_dump_json().encode()
        else:
            episode.reply = self._reply(answer, 0, began)
            episode.done = answer.done
        self.episode, self._given = episode, True
        return episode.reply

    async def _step(self, episode: _Episode, action: Action, deadline_s: float) -> bytes:
        began = time.perf_counter()
        return self._stepped(episode, action, await self._call("step", action, deadline_s=deadline_s), began)

    def _step_now(self, episode: _Episode, action: Action) -> bytes:
        began = time.perf_counter()
        try:
            answer = self.worker.call_now("step", action)
        except EnvironmentFailure as error:
            self._failed(error)
            raise
        return self._stepped(episode, action, answer, began)

    def _stepped(self, episode: _Episode, action: Action, answer: Answer, began: float) -> bytes:
        reply = self._reply(answer, episode.steps + 1, began)
        episode.answered.append((episode.steps, action, reply))
        episode.steps += 1
        episode.done = answer.done
        return reply

    def _reply(self, answer: Answer, steps: int, began: float) -> bytes:
        milliseconds = (time.perf_counter() - began) * 1000
        return b'%s,"session_id":"%s","step":%d,"server_ms":%.3f}' % (
            answer.body[:-1],
            self.id.encode(),
            steps,
            milliseconds,
        )

    def _replay(self, episode: _Episode, index: int, action: Action) -> bytes:
        for answered, with_action, reply in episode.answered:
            if answered == index:
                self._same(index, action, with_action)
                return reply
        raise OutOfOrder(
            f"step {index} was answered long ago and its reply is no longer kept; the next is {episode.steps}"
        )

    def _same(self, index: int, action: Action, before: Action) -> None:
        if action != before:
            raise OutOfOrder(
                f"step {index} was already asked for with another action ({json.dumps(before)[:80]}); "
                "a retry must repeat the action"
            )

    def _same_beginning(self, episode_id: str, arguments: Any, before: Any) -> None:
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
            return await self.worker.call(method, *arguments, deadline_s=deadline_s or self.world.spec.step_deadline_s)
        except EnvironmentFailure as error:
            self._failed(error)
            raise

    def _failed(self, error: EnvironmentFailure) -> None:
        """A request that was wrong leaves the session as it was; any other failure ends it."""
        if not isinstance(error, BadRequest):
            self._table.end(self, f"its world failed ({error.code}: {error})")


def _see(task: asyncio.Task[Any]) -> None:
    """An exception counts as seen even when whoever asked has gone away."""
    if not task.cancelled():
        task.exception()


class Sessions:
    """Every session of a server. Not thread-safe: it belongs to one event loop."""

    def __init__(
        self, *, max_sessions: int, lease_s: float, replies_kept: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_sessions, self.lease_s, self.replies_kept, self.clock = max_sessions, lease_s, replies_kept, clock
        self.live: dict[str, Session] = {}
        self.episodes: dict[tuple[str, str], Session] = {}
        """(world, episode id) -> the session that is, or is about to be, in that episode."""
        self.graves: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """Ended sessions: id -> (world, why it ended)."""
        self.stuck: set[str] = set()
        """Ended sessions whose world has not returned yet: they keep their place until it does."""

    def open(self, world: World) -> Session:
        """A new session. Raises AtCapacity."""
        if len(self.live) + len(self.stuck) >= self.max_sessions:
            self.sweep()
        if len(self.live) + len(self.stuck) >= self.max_sessions:
            raise AtCapacity(
                f"all {self.max_sessions} sessions are taken ({len(self.stuck)} by worlds that hang); close one, wait "
                "for a lease to run out, or start the server with more"
            )
        session = Session(world, self)
        self.live[session.id] = session
        return session

    def find(self, world: World, session_id: str) -> Session:
        """The session, its lease renewed. Raises UnknownSession, or EpisodeLost when it has been and gone."""
        session = self.live.get(session_id)
        if session is not None and self._expired(session):
            self._expire(session)
        elif session is not None and session.world is world:
            session.used = self.clock()
            return session
        grave = self.graves.get(session_id)
        if grave is not None and grave[0] == world.name:
            raise EpisodeLost(f"the session is gone: {grave[1]}; POST /reset without a session_id opens another")
        raise UnknownSession(
            f"{world.name} has no session {session_id[:64]!r}; POST /reset without a session_id opens one"
        )

    def end(self, session: Session, why: str) -> None:
        """Close a session and remember why."""
        self._forget(session)
        self.graves[session.id] = (session.world.name, why)
        while len(self.graves) > GRAVES_KEPT:
            self.graves.popitem(last=False)

    def discard(self, session: Session) -> None:
        """Close a session whose id was never given out."""
        self._forget(session)

    def sweep(self) -> None:
        """End the sessions whose lease has run out."""
        for session in [session for session in self.live.values() if self._expired(session)]:
            self._expire(session)

    def close_all(self) -> None:
        for session in list(self.live.values()):
            self.end(session, "the server stopped")

    def _expired(self, session: Session) -> bool:
        return session.running is None and self.clock() - session.used > self.lease_s

    def _expire(self, session: Session) -> None:
        logging.getLogger(__name__).info("session %s of %s: lease ran out", session.id, session.world.name)
        self.end(session, f"nobody used it for {self.lease_s:g} s and its lease ran out")

    def _forget(self, session: Session) -> None:
        if self.live.pop(session.id, None) is None:
            return
        for episode_id in session.episode_ids():
            self.episodes.pop((session.world.name, episode_id), None)
        if session.running is not None or session.worker.stuck:
            self.stuck.add(session.id)
        session.worker.close(lambda: self.stuck.discard(session.id))
