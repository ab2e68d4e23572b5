"""One server of an environment: how it is started and stopped, whether it is well, and how it is asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from agentgym.clients.server_process import ANNOUNCED, end_of, server_command
from agentgym.errors import EpisodeLost, Unreachable
from agentgym_servers.gateway.destinations import Destinations
from agentgym_servers.gateway.errors import EnvUnreachable, NotStarted
from agentgym_servers.gateway.replica_client import ReplicaClient
from agentgym_servers.gateway.schemas import Registration

HEALTH_TIMEOUT_S = 5.0
MAX_DESCRIPTION = 2**20
"""Bytes of a server's health, metadata or schema."""
MISSES = 3
"""So many health checks in a row without an answer, and a replica counts as gone."""
ENDING_S = 0.3
STOP_S = 10.0
"""A child process that was asked to stop is killed after so long."""
LOG_LINES = 30
MAX_LINE = 4096
"""Bytes kept of a line of a child process."""

ReplicaState = Literal["ready", "unwell", "gone"]


class Running(Protocol):
    """A server that a launcher started."""

    url: str
    ident: str
    """Names it for good: the same after the gateway was restarted."""
    ours: bool
    """The gateway started it, so that it may stop it and start another in its place."""

    @property
    def destinations(self) -> Destinations | None:
        """Addresses that it may have; None where the gateway chose the address."""
        ...

    async def ended(self) -> str | None:
        """Return how it ended; None while it runs, as far as anybody but itself can tell."""
        ...

    async def stop(self) -> None:
        """Stop it for good. Asked twice, the second does nothing."""
        ...


class Launcher(Protocol):
    async def start(self) -> Running:
        """Start a server and wait until it listens; whatever fails or is cancelled leaves nothing behind.

        Raises EnvironmentFailure with the reason.
        """
        ...


@dataclass
class ExternalServer:
    """The server at a URL: not ours to start or stop."""

    url: str
    destinations: Destinations | None = None
    ours: bool = False

    def __post_init__(self) -> None:
        self.ident = self.url

    async def start(self) -> Running:
        return self

    async def ended(self) -> str | None:
        return None

    async def stop(self) -> None:
        pass


class ServerProcess:
    """A child process that serves an environment; it ends when the gateway does."""

    ours = True
    destinations = None

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.url = ""
        self.ident = f"process {process.pid}"
        self.process = process
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        self.announced = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            rest = b""
            while output := await self.process.stdout.read(65536):
                *lines, rest = (rest + output).split(b"\n")
                for line in lines if not self.url else lines[-LOG_LINES:]:
                    self._log(line)
                if len(rest) > MAX_LINE:
                    rest = rest[:MAX_LINE]
                await asyncio.sleep(0)  # a process that prints without end must not keep the loop
            self._log(rest)
        finally:
            self.announced.set()

    def _log(self, line: bytes) -> None:
        self.log.append(line[:MAX_LINE].decode(errors="replace").rstrip())
        if not self.url and (found := ANNOUNCED.search(self.log[-1])):
            self.url = found[1]
            self.announced.set()

    async def ended(self) -> str | None:
        try:  # a socket ends a moment before its process does
            await asyncio.wait_for(self.process.wait(), ENDING_S)
        except TimeoutError:
            return None
        return f"its process ended with status {self.process.returncode}. {end_of(self.log)}"

    async def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()  # asks it to stop
        try:
            await asyncio.wait_for(self.process.wait(), STOP_S)
        except TimeoutError:
            self._kill()
        except asyncio.CancelledError:
            self._kill()
            raise
        finally:
            await self.process.wait()
            with contextlib.suppress(TimeoutError):  # a grandchild may hold its output open
                await asyncio.wait_for(self._reader, 1)

    def _kill(self) -> None:
        """Kill the process with everything it started: it leads a process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


@dataclass(frozen=True)
class EntryPoint:
    """Starts child processes of `python -m agentgym_servers.env_server.app`."""

    registration: Registration

    async def start(self) -> ServerProcess:
        entry = self.registration
        options = [] if entry.max_sessions is None else ["--max-sessions", str(entry.max_sessions)]
        command, environment = server_command([entry.environment], options)
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        child = ServerProcess(process)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(child.announced.wait(), entry.startup_s)
            if not child.url:
                with contextlib.suppress(TimeoutError):  # its output has ended, so it is about to
                    await asyncio.wait_for(process.wait(), 1)
                how = await child.ended() or f"it did not answer within {entry.startup_s:g} s. {end_of(child.log)}"
                raise NotStarted(f"{entry.environment} could not be served: {how}")
        except BaseException:
            await child.stop()
            raise
        return child


@dataclass(eq=False)
class Replica:
    """One running server of an environment, as the gateway knows it."""

    running: Running
    link: ReplicaClient = field(init=False)
    state: ReplicaState = "ready"
    why: str = ""
    """The reason why it is not ready."""
    capacity: int | None = None
    """Most sessions; None when it does not say."""
    sessions: int = 0
    """Sessions of its environment, at the last health check, and those opened and closed since."""
    others: int = 0
    """Sessions of other environments at the same server, which take its capacity, too."""
    opening: int = 0
    """Sessions that are being opened now."""
    changes: int = 0
    """Number of changes of `sessions` between checks: a check that overlaps a change does not count."""
    piped: bool = False
    """Its environment is not routed: what counts are the sockets that go through here, not what its health says."""
    misses: int = 0
    born: float = field(default_factory=time.monotonic)
    idle_since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.link = ReplicaClient(self.running.url, self.running.destinations)

    @property
    def ident(self) -> str:
        return self.running.ident

    def count(self, change: int) -> None:
        """A session was opened or has ended."""
        self.sessions = max(0, self.sessions + change)
        self.changes += 1
        self.idle_since = time.monotonic()

    @property
    def room(self) -> int:
        """Return how many more sessions it may take, as far as is known."""
        return max(0, (self.capacity or 1 << 30) - self.sessions - self.others - self.opening)

    async def look(self) -> None:
        """Ask for its health; `state` says what came of it."""
        changes = self.changes
        try:
            reply = await self.link.request("GET", "/health", None, HEALTH_TIMEOUT_S, max_content=MAX_DESCRIPTION)
            health = json.loads(reply.content)
            well = reply.status == 200 and health.get("status") != "unhealthy"
            problem = "" if well else f"it says {str(health)[:200]}"
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            problem, health = f"no health from {self.link.url}: {type(error).__name__}: {error}", {}
        if problem:
            ended = await self.running.ended()
            return self._miss(problem) if ended is None else self.gone(ended)
        self.misses = 0
        self.why = ""
        if self.state == "unwell":
            self.state = "ready"
        capacity, live = health.get("max_sessions"), health.get("sessions")
        stuck, own = health.get("stuck") or 0, health.get("env_sessions")
        routed = not self.piped and changes == self.changes
        if routed and all(isinstance(one, int) for one in (capacity, live, stuck)) and isinstance(own, int | None):
            everything: int = live + stuck  # type: ignore[operator]
            self.capacity, self.sessions = capacity, everything if own is None else own
            self.others = everything - self.sessions
        if self.sessions or self.opening:
            self.idle_since = time.monotonic()

    def _miss(self, problem: str) -> None:
        self.misses += 1
        self.why = problem
        if self.running.ours and self.misses >= MISSES:
            self.gone(problem)
        elif self.state == "ready" and self.misses >= (1 if not self.running.ours else MISSES):
            self.state = "unwell"

    def gone(self, why: str) -> None:
        """It will not come back; its sessions are lost."""
        self.state, self.why = "gone", why

    async def ask(self, path: str, body: bytes | None, timeout_s: float) -> bytes:
        """`ReplicaClient.ask`. Raises EpisodeLost when the replica is gone."""
        return await self._answer(self.link.ask(path, body, timeout_s))

    async def step(self, body: bytes, timeout_s: float, *, repeatable: bool) -> bytes:
        """`ReplicaClient.step`. Raises EpisodeLost when the replica is gone."""
        return await self._answer(self.link.step(body, timeout_s, repeatable=repeatable))

    async def _answer(self, answer: Coroutine[Any, Any, bytes]) -> bytes:
        if self.state == "gone":
            answer.close()
            raise EpisodeLost(f"the session's replica is gone: {self.why}")
        try:
            return await answer
        except Unreachable as error:
            if self.state != "gone" and (ended := await self.running.ended()) is not None:
                self.gone(ended)
            if self.state != "gone":
                raise
            raise EpisodeLost(f"the session's replica is gone: {self.why}") from error
        except asyncio.CancelledError:  # its link was closed
            if self.state != "gone":
                raise
            raise EpisodeLost(f"the session's replica is gone: {self.why}") from None

    async def stop(self, why: str) -> None:
        self.gone(why)
        await self.link.close()
        await self.running.stop()


async def answering(running: Running, startup_s: float) -> Replica:
    """A replica once it is healthy. Raises NotStarted, or EnvUnreachable for a given one."""
    replica = Replica(running)
    give_up = time.monotonic() + (startup_s if running.ours else 0)
    while True:
        replica.misses, replica.state = 0, "unwell"
        await replica.look()
        if replica.state == "ready":
            return replica
        if replica.state == "gone" or time.monotonic() > give_up:
            break
        await asyncio.sleep(0.1)
    await replica.link.close()
    what = f"{replica.ident} is not healthy: {replica.why}"
    raise NotStarted(what) if running.ours else EnvUnreachable(what)


async def metadata_of(replica: Replica) -> dict[str, Any]:
    """Return the server's metadata. Raises EnvUnreachable for what is no environment server."""
    try:
        reply = await replica.link.request("GET", "/metadata", None, HEALTH_TIMEOUT_S, max_content=MAX_DESCRIPTION)
        metadata = json.loads(reply.content)
        if reply.status == 200 and isinstance(metadata, dict) and metadata.get("name"):
            return metadata
        what = f"it answered {reply.status}: {reply.content[:200]!r}"
    except (OSError, ValueError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"
    raise EnvUnreachable(f"{replica.link.url}/metadata is no environment server's: {what}")
