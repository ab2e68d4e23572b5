"""The table of a server's sessions: who has a place, who waits for one, whose lease ran out, why others ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from agentgym.errors import AtCapacity, EnvironmentFailure, EpisodeLost, QuotaExceeded, UnknownSession
from agentgym_servers.env_server.session import ServerSession
from agentgym_servers.env_server.workers.env_call import ServedEnv
from agentgym_servers.env_server.workers.pool import ProcessWorker, WorkerPool
from agentgym_servers.env_server.workers.worker import LocalWorker, Worker
from agentgym_servers.web.backend import consume_exception
from agentgym_servers.web.caller import CALLER
from agentgym_servers.web.logs import brief, note
from agentgym_servers.web.metrics import Metrics

MAX_ENDED_SESSIONS = 10_000
"""Ended sessions remembered, so that asking for one says why it is gone."""
MAX_RETRY_S = 60

_log = logging.getLogger(__name__)


@dataclass
class _Waiter:
    """A request for a session that waits for room. The same request repeated waits with it."""

    env: ServedEnv
    episode_id: str | None
    session: asyncio.Future[ServerSession]
    address: str
    """The address that wants it."""
    timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class SessionTable:
    """Every session of a server. Not thread-safe: it belongs to one event loop."""

    def __init__(
        self,
        pool: WorkerPool,
        metrics: Metrics,
        *,
        max_sessions: int,
        queue: int,
        lease_s: float,
        replies_kept: int,
        sessions_per_address: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_sessions, self.queue = max_sessions, queue
        self.lease_s, self.replies_kept, self.clock = lease_s, replies_kept, clock
        self.sessions_per_address = sessions_per_address
        self._by_address: Counter[str] = Counter()
        """Sessions, and requests that wait for one, by who asked for them."""
        self.metrics = metrics
        self.live: dict[str, ServerSession] = {}
        self.episodes: dict[tuple[str, str], ServerSession] = {}
        """(environment, episode id) -> the session that is, or is about to be, in that episode."""
        self.ended_sessions: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """Ended sessions: id -> (environment, why it ended)."""
        self.stuck: dict[str, str] = {}
        """Ended sessions whose environment has not returned yet, id -> environment: they keep their place until it
        does."""
        self.waiting: OrderedDict[Hashable, _Waiter] = OrderedDict()
        """Requests that wait for a place, first come first, by (environment, episode id) where there is one."""
        self._pool = pool
        self._freed: deque[float] = deque(maxlen=32)
        """Times when places became free recently."""
        metrics.gauge("agentgym_sessions", "Live sessions.", lambda: self._by_env(self.live.values()))
        metrics.gauge("agentgym_queue_length", "Waiting for room.", lambda: self._by_env(self.waiting.values()))

    def open(self, env: ServedEnv) -> ServerSession:
        """A new session, at once. Raises AtCapacity or QuotaExceeded."""
        address = self._address()
        if self.waiting or not self._has_room():
            raise self._full()
        return self._new(env, address)

    def admit(
        self, env: ServedEnv, episode_id: str | None, queue_s: float
    ) -> ServerSession | asyncio.Future[ServerSession]:
        """The session that an earlier request with the same episode id opened or waits for, else a new one.

        A future when it must wait for room, at most `queue_s` seconds. Raises AtCapacity, or the future does; raises
        QuotaExceeded.
        """
        key = (env.name, episode_id) if episode_id is not None else object()
        if episode_id is not None and (begun := self.episodes.get((env.name, episode_id))) is not None:
            return self.find(env, begun.id)
        waiter = self.waiting.get(key)
        address = self._address() if waiter is None else waiter.address
        if waiter is None and not self.waiting and self._has_room():
            return self._new(env, address)
        if queue_s <= 0 or (waiter is None and len(self.waiting) >= self.queue):
            raise self._full()
        loop = asyncio.get_running_loop()
        if waiter is None:
            waiter = self.waiting[key] = _Waiter(env, episode_id, loop.create_future(), address)
            self._by_address[address] += 1
            waiter.session.add_done_callback(consume_exception)
        if waiter.timer is None or waiter.timer.when() < loop.time() + queue_s:
            waiter.cancel()
            waiter.timer = loop.call_later(queue_s, self._too_late, key)
        return waiter.session

    def worker(self, env: ServedEnv, lost: Callable[[EnvironmentFailure], None]) -> Worker:
        """Return the worker in which a session's environment runs.

        `lost` is told when it is gone while nobody calls it.
        """
        if env.spec.inline or env.source is None:
            return LocalWorker(env)
        return ProcessWorker(self._pool, env, lost)

    def find(self, env: ServedEnv, session_id: str) -> ServerSession:
        """The session, its lease renewed. Raises UnknownSession, or EpisodeLost when it has been and gone."""
        session = self.look(env, session_id)
        session.used, session.evictable = self.clock(), False
        return session

    def look(self, env: ServedEnv, session_id: str) -> ServerSession:
        """Return the session, as `find` does, without renewing the lease."""
        session = self.live.get(session_id)
        if session is not None and self._expired(session):
            self._expire(session)
        elif session is not None and session.env is env:
            return session
        ended = self.ended_sessions.get(session_id)
        if ended is not None and ended[0] == env.name:
            raise EpisodeLost(f"the session is gone: {ended[1]}; POST /reset without a session_id opens another")
        raise UnknownSession(
            f"{env.name} has no session {session_id[:64]!r}; POST /reset without a session_id opens one"
        )

    def end(self, session: ServerSession, why: str, cause: str = "closed") -> None:
        """Close a session, unless it has ended already, and remember why. `cause` is for metrics and logs."""
        if session.id not in self.live:
            return
        session.metrics.ended[cause] += 1
        level = logging.DEBUG if cause == "closed" else logging.INFO
        note(_log, "session ended", level, env=session.env.name, session=brief(session.id), why=why, code=cause)
        self.ended_sessions[session.id] = (session.env.name, why)
        while len(self.ended_sessions) > MAX_ENDED_SESSIONS:
            self.ended_sessions.popitem(last=False)
        self._forget(session)

    def discard(self, session: ServerSession) -> None:
        """Close a session whose id was never given out."""
        self._forget(session)

    def sweep(self) -> None:
        """End the sessions whose lease has run out."""
        for session in [session for session in self.live.values() if self._expired(session)]:
            self._expire(session)

    def count(self, env: str) -> int:
        """Return how many places the sessions of one environment take, stuck ones included."""
        live = sum(session.env.name == env for session in self.live.values())
        return live + sum(name == env for name in self.stuck.values())

    def close_all(self) -> None:
        for key in list(self.waiting):
            self._too_late(key)
        for session in list(self.live.values()):
            self.end(session, "the server stopped", "stopped")

    def _expired(self, session: ServerSession) -> bool:
        return session.running is None and self.clock() - session.used > self.lease_s

    def _expire(self, session: ServerSession) -> None:
        self.end(session, f"nobody used it for {self.lease_s:g} s and its lease ran out", "lease")

    def _forget(self, session: ServerSession) -> None:
        if self.live.pop(session.id, None) is None:
            return
        self._count_less(session.address)
        for episode_id in session.episode_ids():
            self.episodes.pop((session.env.name, episode_id), None)
        if session.running is not None or session.worker.stuck:
            loop = asyncio.get_running_loop()
            self.stuck[session.id] = session.env.name
            session.worker.close(lambda: self._returned(loop, session.id))
        else:
            session.worker.close()
            self._place_free()

    def _returned(self, loop: asyncio.AbstractEventLoop, session_id: str) -> None:
        """An environment that was stuck has returned, in whichever thread."""

        def unstick() -> None:
            self.stuck.pop(session_id, None)
            self._place_free()

        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            loop.call_soon_threadsafe(unstick)

    def _new(self, env: ServedEnv, address: str) -> ServerSession:
        session = ServerSession(env, self, address)
        self.live[session.id] = session
        self._by_address[address] += 1
        return session

    def _address(self) -> str:
        """Return the address that asks for a session. Raises QuotaExceeded when it has all that it may have."""
        address, most = CALLER.get().address, self.sessions_per_address
        if most is not None and self._by_address[address] >= most:
            self.sweep()
            if self._by_address[address] >= most:
                raise QuotaExceeded(
                    f"one address may have {most} sessions here, and yours has them: close some, wait for a lease "
                    "to run out, or start the server with a larger `--sessions-per-address`"
                )
        return address

    def _count_less(self, address: str) -> None:
        self._by_address[address] -= 1
        if self._by_address[address] <= 0:
            del self._by_address[address]

    def _has_room(self) -> bool:
        if not self._free():
            self.sweep()
        if not self._free():
            self._evict()
        return self._free()

    def _free(self) -> bool:
        return len(self.live) + len(self.stuck) < self.max_sessions

    def _evict(self) -> None:
        """End the oldest session that somebody opened in passing: OpenEnv's clients post /reset and never come back."""
        for session in self.live.values():
            if session.evictable and session.running is None:
                why = "it was never used, and there was no room; give /reset an `episode_id` to keep a session"
                self.end(session, why, "evicted")
                return

    def _place_free(self) -> None:
        self._freed.append(self.clock())
        while self.waiting and self._free():
            _, waiter = self.waiting.popitem(last=False)
            waiter.cancel()
            self._count_less(waiter.address)
            session = self._new(waiter.env, waiter.address)
            if waiter.episode_id is not None:
                self.episodes[waiter.env.name, waiter.episode_id] = session
            waiter.session.set_result(session)

    def _too_late(self, key: Hashable) -> None:
        waiter = self.waiting.pop(key)
        waiter.cancel()
        self._count_less(waiter.address)
        self.metrics.envs[waiter.env.name].errors[AtCapacity.code] += 1
        waiter.session.set_exception(self._full())

    def _full(self) -> AtCapacity:
        """Says when to come back: the places that became free lately tell how long one takes."""
        gap_s = (self.clock() - self._freed[0]) / len(self._freed) if self._freed else 0.0
        return AtCapacity(
            f"all {self.max_sessions} sessions are taken ({len(self.stuck)} by environments that hang) and "
            f"{len(self.waiting)} wait; close one, wait for a lease to run out, or start the server with more",
            retry_after_s=max(1, min(MAX_RETRY_S, math.ceil(gap_s * (len(self.waiting) + 1)))),
        )

    def _by_env(self, things: Iterable[ServerSession | _Waiter]) -> dict[str, float]:
        return {**dict.fromkeys(self.metrics.envs, 0), **Counter(thing.env.name for thing in things)}
