"""Worker processes: which session goes where, and what becomes of a process that crashes, hangs or grows."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agentgym.errors import DeadlineExceeded, EnvironmentCrashed, EnvironmentFailure, EpisodeLost
from agentgym_servers.env_server.workers.env_call import ServedEnv
from agentgym_servers.env_server.workers.process import WorkerProcess
from agentgym_servers.env_server.workers.worker import OnClosed, noop
from agentgym_servers.web.logs import note
from agentgym_servers.web.metrics import Metrics

TICK_S = 0.5
"""Seconds between checks of the processes."""
SILENT_S = 3.0
"""A process in which a call is overdue and that answers no ping for so long is killed with all its sessions."""
CLOSE_S = 30.0
"""An environment that takes longer to close hangs."""
IDLE_S = 300.0
"""A process without sessions ends after so long."""
STOP_S = 2.0
"""Seconds for environments to close when the server stops."""
MAX_BACKOFF_S = 30.0

_log = logging.getLogger(__name__)


class ProcessWorker:
    """`Worker` of a session whose environment runs in one of the pool's processes."""

    inline = False

    def __init__(self, pool: WorkerPool, env: ServedEnv, lost: Callable[[EnvironmentFailure], None]) -> None:
        self.env, self._pool, self._lost = env, pool, lost
        self.key = next(pool.keys)
        self.stuck = False
        self._process: WorkerProcess | None = None
        self._answer: asyncio.Future[Any] | None = None
        self._deadline_s: float | None = None
        """Deadline of the call that runs now, closing included."""
        self._timer: asyncio.TimerHandle | None = None
        self._freed: OnClosed | None = None

    def call_now(self, method: str, *arguments: Any) -> Any:
        raise NotImplementedError("only an inline environment can be called now")

    async def call(self, method: str, *arguments: Any, deadline_s: float) -> Any:
        if self._freed is not None:
            raise EpisodeLost("the session has ended")
        if self._process is None:
            self._process = self._pool.place(self)
        self._answer = asyncio.get_running_loop().create_future()
        if method == "restore":
            self._ask(method, arguments[1:], deadline_s, self._answered, arguments[0])
        else:
            self._ask(method, arguments, deadline_s, self._answered)
        return await self._answer

    def close(self, freed: OnClosed = noop) -> None:
        self._freed = freed
        self._settle(EpisodeLost("the session was ended while this call was running"))
        if self._process is None:
            freed()
        elif self._deadline_s is None:
            self._ask("close", [], CLOSE_S, self._closed)
        else:  # the thread is busy: its close comes next, and the call's deadline still holds
            self._process.ask(self.key, "close", [], self._closed)

    def arm(self) -> None:
        """Start the clock of the call that runs: its process is ready."""
        if self._deadline_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._deadline_s, self._late)

    def process_ended(self, error: EnvironmentFailure) -> None:
        self._stop_clock()
        self._process, self.stuck = None, False
        if self._freed is not None:
            self._freed()
        elif not self._settle(error):
            self._lost(error)

    def _ask(
        self, method: str, arguments: Any, deadline_s: float, answered: Callable[[Any], None], body: bytes = b""
    ) -> None:
        assert self._process is not None
        self._deadline_s = deadline_s
        self._process.ask(self.key, method, arguments, answered, body)
        if self._process.ready:
            self.arm()

    def _answered(self, result: Any) -> None:
        self._stop_clock()
        self._settle(result)
        if self._freed is not None:  # the close is what runs now
            self._deadline_s = CLOSE_S
            self.arm()

    def _closed(self, _: Any) -> None:
        self._stop_clock()
        self.stuck = False
        assert self._process is not None
        assert self._freed is not None
        self._pool.release(self._process, self)
        self._process = None
        self._freed()

    def _late(self) -> None:
        assert self._process is not None
        self._timer, self.stuck = None, True
        self._settle(DeadlineExceeded(f"{self.env.name} gave no answer in {self._deadline_s:g} s"))
        self._pool.on_deadline_missed(self._process, self)

    def _stop_clock(self) -> None:
        self._deadline_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _settle(self, result: Any) -> bool:
        """Give whoever waits the result. False when nobody does."""
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return False
        if isinstance(result, EnvironmentFailure):
            answer.set_exception(result)
        else:
            answer.set_result(result)
        return True


@dataclass
class _WorkerGroup:
    """The processes of one environment."""

    processes: list[WorkerProcess] = field(default_factory=list)
    failures: int = 0
    """Processes in a row that died before they were ready."""
    not_before: float = 0.0
    reason: EnvironmentFailure | None = None


class WorkerPool:
    """Pool of at most `workers` healthy processes for each environment, started when they are needed, each holding many
    sessions.

    An environment's sessions go to the process with the fewest. A process in which a call has missed its deadline takes
    no new ones; it is killed when nothing else runs in it, or when it answers no pings. Environments share no process,
    so what one does is never another's loss. Belongs to one event loop.
    """

    def __init__(self, workers: int | None, memory_mb: int, metrics: Metrics) -> None:
        self.workers = workers or os.cpu_count() or 1
        self.memory_mb = memory_mb
        self.keys = itertools.count(1)
        self._metrics = metrics
        self._teams: dict[str, _WorkerGroup] = {}
        self._supervisor: asyncio.Task[None] | None = None
        self._stopping = False
        metrics.gauge("agentgym_workers", "Worker processes.", lambda: self._read(lambda _: 1))
        metrics.gauge(
            "agentgym_worker_memory_bytes", "Resident memory of worker processes.", lambda: self._read(_memory)
        )

    def place(self, worker: ProcessWorker) -> WorkerProcess:
        """A process for a new session. Raises EnvironmentCrashed when none can be started."""
        team = self._teams.setdefault(worker.env.name, _WorkerGroup())
        fit = [process for process in team.processes if not (process.ending or process.stuck)]
        best = min(fit, key=lambda process: (process.silent_s() > 2 * TICK_S, len(process.places)), default=None)
        may_start = len(fit) < self.workers and time.monotonic() >= team.not_before and not self._stopping
        if (best is None or best.places) and may_start:
            best = self._start(team, worker.env)
        if best is None:
            wait_s = max(0.0, team.not_before - time.monotonic())
            raise EnvironmentCrashed(f"{team.reason or 'the server is stopping'} (tried again in {wait_s:.1f} s)")
        best.places[worker.key] = worker
        return best

    def release(self, process: WorkerProcess, worker: ProcessWorker) -> None:
        """A session has closed its environment."""
        process.places.pop(worker.key, None)
        process.stuck.discard(worker.key)
        process.idle_since = time.monotonic()
        self._kill_if_stuck(process)

    def on_deadline_missed(self, process: WorkerProcess, worker: ProcessWorker) -> None:
        """A session's call is overdue."""
        process.stuck.add(worker.key)
        process.ping()
        note(_log, "deadline missed", env=process.env.name, worker=process.pid, sessions=len(process.places))
        self._kill_if_stuck(process)

    async def close(self) -> None:
        """End every process, after giving its environments a moment to close."""
        self._stopping = True
        until = time.monotonic() + STOP_S
        while time.monotonic() < until and any(process.places for process in self._processes()):
            await asyncio.sleep(0.02)
        for process in self._processes():
            process.kill("the server stopped")
        await asyncio.gather(*(process.gone.wait() for process in self._processes()))
        if self._supervisor is not None:
            self._supervisor.cancel()

    def _start(self, team: _WorkerGroup, env: ServedEnv) -> WorkerProcess:
        hanging = [process for process in team.processes if process.stuck and not process.ending]
        if len(hanging) >= self.workers:  # there must be an end to how many are kept for their other sessions
            least = min(hanging, key=lambda process: len(process.places))
            least.kill("a call of another session hangs in it, and in too many others of this environment")
        if self._supervisor is None:
            self._supervisor = asyncio.get_running_loop().create_task(self._supervise())
        try:
            process = WorkerProcess(env, self.memory_mb, self._ready, self._ended)
        except OSError as error:
            raise EnvironmentCrashed(f"{env.name}: no worker process can be started: {error}") from error
        note(_log, "worker started", env=env.name, worker=process.pid)
        team.processes.append(process)
        return process

    def _ready(self, process: WorkerProcess) -> None:
        self._teams[process.env.name].failures = 0
        for worker in process.places.values():
            worker.arm()

    def _ended(self, process: WorkerProcess) -> None:
        team = self._teams[process.env.name]
        team.processes.remove(process)
        if not process.ready:
            team.failures += 1
            team.not_before = time.monotonic() + min(MAX_BACKOFF_S, 0.25 * 2**team.failures)
            team.reason = process.error
        missed = bool(process.places) or not process.ready
        if missed and not self._stopping:
            self._metrics.envs[process.env.name].restarts += 1
        level = logging.WARNING if missed else logging.INFO
        note(_log, "worker ended", level, env=process.env.name, worker=process.pid, why=str(process.error))
        places = list(process.places.values())
        process.places.clear()
        assert process.error is not None
        for worker in places:
            worker.process_ended(process.error)

    def _kill_if_stuck(self, process: WorkerProcess) -> None:
        if process.stuck and len(process.stuck) == len(process.places):
            process.kill("a call in it missed its deadline")

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for process in list(self._processes()):
                self._check_health(process)

    def _check_health(self, process: WorkerProcess) -> None:
        if process.died():
            process.finish()
        elif process.stuck and process.silent_s() > SILENT_S:
            process.kill("a call in it missed its deadline and it answers no pings")
        elif (used := process.memory()) > 1.25 * self.memory_mb * 2**20:  # its own limit is below that
            process.kill(f"it used {used / 2**20:.0f} MiB of memory, and may use {self.memory_mb}")
        elif not process.places and process.ready and time.monotonic() - process.idle_since > IDLE_S:
            process.kill("nobody needed it")
        elif process.ready:
            process.ping()

    def _processes(self) -> Iterator[WorkerProcess]:
        return (process for team in self._teams.values() for process in team.processes)

    def _read(self, value: Callable[[WorkerProcess], float]) -> dict[str, float]:
        return {env: sum(map(value, team.processes)) for env, team in self._teams.items()}


def _memory(process: WorkerProcess) -> float:
    return process.memory()
