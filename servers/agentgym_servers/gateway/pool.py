"""The replicas of one environment, watched, restarted, scaled, drained; and who waits for room.

A session that finds no room waits for its turn, first come first served. The pool wakes as many as there seems to be
room for; what a replica then answers decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import heapq
import itertools
import logging
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from agentgym.errors import AtCapacity, EnvironmentFailure, EpisodeLost, Unreachable
from agentgym_servers.gateway.replicas import Launcher, Replica, answering
from agentgym_servers.gateway.schemas import Registration

HEALTH_S = 2.0
"""Seconds between two health checks of every replica."""
WAITING_S = 0.25
"""The same while somebody waits for room, which leases that run out may give."""
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.5, 60.0
"""Waited before a failed start is tried again: doubled for each failure in a row."""
PROVEN_S = 60.0
"""A replica that ends sooner counts as a failed start."""

REMEMBERED = 200_000
"""Sessions, and episodes, of which the replica is remembered."""

log = logging.getLogger(__name__)


class ReplicaPool:
    def __init__(
        self, registration: Registration, launcher: Launcher, replicas: Sequence[Replica], *, piped: bool = False
    ) -> None:
        self.registration, self.launcher, self.piped = registration, launcher, piped
        self.replicas: list[Replica] = []
        for replica in replicas:
            self._add(replica)
        self.draining = False
        self.restarts = 0
        self.last_failure = ""
        self.table: OrderedDict[str, Replica] = OrderedDict()
        """Session -> its replica. What is forgotten is found again by asking the replicas."""
        self.episodes: OrderedDict[str, tuple[Replica, str]] = OrderedDict()
        """Episode -> the replica and session in which it was begun, so that a reset asked again finds them."""
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []
        """A heap of tickets and who is woken for them."""
        self._called = 0
        """Woken, and not yet placed."""
        self._wanted = False
        """Somebody was turned away since the last look."""
        self._tickets = itertools.count()
        self._nudged = asyncio.Event()
        self._failures = 0
        self._not_before = 0.0
        self._starts: set[asyncio.Task[None]] = set()
        self._stops: set[asyncio.Task[None]] = set()
        self._supervisor: asyncio.Task[None] | None = None

    # --- for the router ---------------------------------------------------------------------------------------------

    def ready(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.state == "ready"]

    def least_used(self) -> Replica:
        """Raises Unreachable when none answers now; one is then started, if that is allowed."""
        if not (ready := self.ready()) or self.draining:
            self._wanted = True
            self.wake_supervisor()
            raise Unreachable(f"{self.registration.name} has no replica that answers now{self._reason()}")
        return min(ready, key=lambda replica: replica.sessions)

    async def place(
        self, key: str | None, queue_s: float, begin: Callable[[Replica], Awaitable[bytes]]
    ) -> tuple[Replica, bytes]:
        """Begin a session wherever there is room, for at most `queue_s` seconds from now.

        The same `key` prefers the same replica. Raises AtCapacity, or what `begin` raised.
        """
        deadline = time.monotonic() + queue_s
        ticket: int | None = None
        while True:
            if ticket is not None or not self._others_first():
                try:
                    return await self._try(key, begin)
                except AtCapacity:
                    self._wanted = True
                    self.wake_supervisor()
                finally:
                    if ticket is not None:
                        self._called -= 1
                        self.wake()
            ticket = next(self._tickets) if ticket is None else ticket
            if not await self._turn(ticket, deadline - time.monotonic()):
                raise AtCapacity(
                    f"{self.registration.name} has no room for another session"
                    f"{f' after {queue_s:g} s' if queue_s else ''}{self._reason()}; close one, wait, or register it "
                    "with more replicas"
                )

    def remember(self, session_id: str, replica: Replica, episode_id: str | None = None) -> None:
        _keep(self.table, session_id, replica)
        if episode_id is not None:
            _keep(self.episodes, episode_id, (replica, session_id))

    def request_health_check(self) -> None:
        """A replica did not answer: look at all of them now."""
        self.wake_supervisor()

    def left(self, replica: Replica) -> None:
        """A session of the replica ended."""
        replica.count(-1)
        self.wake()

    def wake(self) -> None:
        """Wake as many as there seems to be room for."""
        room = sum(replica.room for replica in self.ready()) - self._called
        while self.waiting and room > 0:
            _, future = heapq.heappop(self.waiting)
            if not future.done():
                future.set_result(None)
                self._called += 1
                room -= 1

    def wake_supervisor(self) -> None:
        self._nudged.set()

    # --- its life ---------------------------------------------------------------------------------------------------

    def supervise(self) -> None:
        """Watch and scale from now on."""
        self._supervisor = asyncio.create_task(self._supervise())
        self._supervisor.add_done_callback(_report)

    async def drain(self, drain_s: float) -> int:
        """Let no session begin, wait until the running ones have ended or `drain_s` is over, and stop everything.

        Gives the number of sessions that were lost.
        """
        self._dismiss()
        give_up = time.monotonic() + drain_s
        while self._live() and time.monotonic() < give_up:
            await asyncio.sleep(WAITING_S)
            await asyncio.gather(*(replica.look() for replica in self.replicas))
        lost = self._live()
        await self.stop("its environment was removed")
        return lost

    async def stop(self, why: str) -> None:
        """Stop every replica that the gateway started."""
        self._dismiss()
        tasks = [*self._starts, *([self._supervisor] if self._supervisor else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._stops, return_exceptions=True)
        replicas, self.replicas = self.replicas, []
        for outcome in await asyncio.gather(*(one.stop(why) for one in replicas), return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.error("a replica of %s could not be stopped: %r", self.registration.name, outcome)

    def _dismiss(self) -> None:
        """Let no session begin any more; who waits for room is told at once."""
        self.draining = True
        waiting, self.waiting = self.waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_result(None)
                self._called += 1

    async def _supervise(self) -> None:
        while True:
            self._nudged.clear()
            await asyncio.gather(*(replica.look() for replica in self.replicas))
            self._remove_dead()
            if not self.draining:
                self._scale()
            self.wake()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._nudged.wait(), WAITING_S if self.waiting else HEALTH_S)

    def _remove_dead(self) -> None:
        """Clear away the replicas that are gone."""
        for replica in [one for one in self.replicas if one.state == "gone"]:
            self.replicas.remove(replica)
            log.warning("%s lost %s: %s", self.registration.name, replica.ident, replica.why)
            self.restarts += 1
            proven = time.monotonic() - replica.born > PROVEN_S
            self._failed(replica.why, 0 if proven else self._failures + 1)
            self._task(self._stops, replica.stop(replica.why))

    def _scale(self) -> None:
        """Start as many as are wanted, or let one that idles go."""
        if not self.replicas and self.registration.kind == "url":
            return
        limits, now = self.registration.replicas, time.monotonic()
        here = [one for one in self.replicas if one.state in ("ready", "unwell")]
        count = len(here) + len(self._starts)
        wanted = limits.min
        if self.waiting or self._wanted or (here and not any(one.room for one in here)):
            capacity = max((one.capacity or 1 for one in here), default=len(self.waiting) or 1)
            wanted = max(wanted, len(here) + max(1, math.ceil(len(self.waiting) / capacity)))
        self._wanted = False
        if count < min(wanted, limits.max) and now >= self._not_before:
            for _ in range(min(wanted, limits.max) - count):
                self._task(self._starts, self._start())
        elif count > limits.min and not self.waiting:
            idle = [one for one in here if not (one.sessions or one.opening)]
            for replica in [one for one in idle if now - one.idle_since >= self.registration.idle_s][:1]:
                log.info("%s: %s had no session for a while and stops", self.registration.name, replica.ident)
                self.replicas.remove(replica)
                self._task(self._stops, replica.stop("it had no session for a while and was stopped"))

    async def _start(self) -> None:
        try:
            self._add(await started(self.launcher, self.registration.startup_s))
            self._failures, self.last_failure = 0, ""
        except EnvironmentFailure as error:
            log.warning("%s: a replica could not be started: %s", self.registration.name, error)
            self._failed(str(error), self._failures + 1)
        finally:
            self.wake()
            self.wake_supervisor()

    def _add(self, replica: Replica) -> None:
        if self.piped:
            replica.piped, replica.capacity, replica.sessions = True, None, 0
        self.replicas.append(replica)

    def _failed(self, why: str, failures: int) -> None:
        self._failures, self.last_failure = failures, why
        pause = 0.0 if not failures else min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (failures - 1))
        self._not_before = time.monotonic() + pause

    def _task(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(_report)

    # --- room -------------------------------------------------------------------------------------------------------

    async def _try(self, key: str | None, begin: Callable[[Replica], Awaitable[bytes]]) -> tuple[Replica, bytes]:
        """Raises AtCapacity when no replica has room."""
        for replica in [] if self.draining else self._preferred(key):
            replica.opening += 1
            try:
                answer = await begin(replica)
            except AtCapacity:
                full = (replica.capacity or 0) - replica.opening + 1
                replica.others = max(replica.others, full - replica.sessions)  # until its health says more
            except (Unreachable, EpisodeLost):  # nobody knows of a session there yet: another replica may have it
                self.request_health_check()
            else:
                replica.count(+1)
                return replica, answer
            finally:
                replica.opening -= 1
        raise AtCapacity("no replica has room")

    def _preferred(self, key: str | None) -> list[Replica]:
        """Those that seem full last, else a server may evict a session for which another has room.

        By rendezvous hashing: a key keeps its replica when others come and go. Without one, most room first.
        """

        def rank(replica: Replica) -> tuple[bool, Any]:
            digest = hashlib.blake2b(f"{key} {replica.ident}".encode(), digest_size=8).digest()
            return replica.room == 0, -replica.room if key is None else digest

        return sorted(self.ready(), key=rank)

    def _others_first(self) -> bool:
        room = sum(replica.room for replica in self.ready())
        return bool(self.waiting) or (self._called > 0 and room <= self._called)

    async def _turn(self, ticket: int, left_s: float) -> bool:
        """Wait to be woken; False when the time is over."""
        if left_s <= 0 or self.draining:
            self._wanted = True
            self.wake_supervisor()
            return False
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self.waiting, (ticket, future))
        self.wake_supervisor()
        try:
            async with asyncio.timeout(left_s):
                await future
        except BaseException as error:
            self.waiting = [entry for entry in self.waiting if entry[1] is not future]
            heapq.heapify(self.waiting)
            if future.done() and not future.cancelled():  # woken in the same moment: the next one's turn
                self._called -= 1
                self.wake()
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    def _live(self) -> int:
        """Sessions of this gateway's: a server that was given may have others' too."""
        through_here = Counter(map(id, self.table.values()))
        return sum(
            one.sessions if one.running.ours else min(one.sessions, through_here[id(one)])
            for one in self.replicas
            if one.state != "gone"
        )

    def _reason(self) -> str:
        if self.draining:
            return ": it is being removed"
        if self.ready():
            return ""
        unwell = next((replica.why for replica in self.replicas if replica.why), "")
        return f": {self.last_failure or unwell or 'a replica is starting'}"


def _keep(table: OrderedDict[str, Any], key: str, value: Any) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > REMEMBERED:
        table.popitem(last=False)


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("a bug in the gateway", exc_info=error)


async def started(launcher: Launcher, startup_s: float) -> Replica:
    """A new replica that answers. Raises EnvironmentFailure, and leaves nothing running then."""
    running = await launcher.start()
    try:
        return await answering(running, startup_s)
    except BaseException:
        if running.ours:
            await running.stop()
        raise
