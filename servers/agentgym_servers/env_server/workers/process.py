"""One worker process, seen from the server: started, asked, listened to, and taken away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from agentgym.errors import EnvironmentCrashed, EnvironmentFailure
from agentgym_servers.env_server.workers.env_call import ServedEnv, describe
from agentgym_servers.env_server.workers.framing import MAX_REPLY, Unpacker, pack, unpack_result
from agentgym_servers.web.logs import note

START_S = 60.0
"""A worker process that has not imported its environment by then is given up."""
LINE = 500
"""Characters kept of a line that an environment prints."""
OUTPUT_PER_S = 2**20
"""Bytes a second of what a process prints that are looked at. The rest is read and dropped: printing never waits."""
LINES_PER_S = 50
"""Lines of those that reach the log."""

_log = logging.getLogger(__name__)


Answered = Callable[[Any], None]


class WorkerProcess(asyncio.Protocol):
    """A child process of one environment, and the calls that it has not answered yet.

    `on_ready` is called once it has imported its environment, `on_end` once it is gone and `error` says why.
    """

    def __init__(
        self,
        env: ServedEnv,
        memory_mb: int,
        on_ready: Callable[[WorkerProcess], None],
        on_end: Callable[[WorkerProcess], None],
    ) -> None:
        self.env = env
        self.places: dict[int, Any] = {}
        """The sessions it holds, by key."""
        self.stuck: set[int] = set()
        """Keys of sessions that have missed a deadline: while there is one, no new session comes here."""
        self.ready = False
        self.ending = False
        self.error: EnvironmentFailure | None = None
        self.idle_since = self.pinged_at = time.monotonic()
        self.ponged = True
        self.gone = asyncio.Event()
        self._on_ready, self._on_end = on_ready, on_end
        self._why: str | None = None
        self._calls: dict[int, Answered] = {}
        self._call_number = 0
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._unpacker = Unpacker(2 * MAX_REPLY)
        self._output: asyncio.ReadTransport | None = None
        self._reaper: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        command = [
            sys.executable,
            "-u",
            "-X",
            "faulthandler",
            "-m",
            "agentgym_servers.env_server.workers.worker_main",
            str(theirs.fileno()),
        ]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError:
            ours.close()
            os.close(reading)
            raise
        finally:
            theirs.close()
            os.close(writing)
        self.pid = self._process.pid
        how = {"path": sys.path, "name": env.source, "target": env.target, "memory": memory_mb * 2**20}
        self.ask(0, "start", how, self._started)
        self._overdue = self._loop.call_later(START_S, self.kill, f"it did not start within {START_S:g} s")
        self._connecting = self._loop.create_task(self._connect(ours, reading))

    def ask(self, session: int, method: str, arguments: Any, answered: Answered, body: bytes = b"") -> None:
        """Make a call. `answered` gets its result or the EnvironmentFailure it ended in, unless the process ends."""
        self._call_number += 1
        self._calls[self._call_number] = answered
        frame = pack([self._call_number, session, method, arguments], body)
        if self._transport is None:
            self._unsent.append(frame)
        elif not self._transport.is_closing():
            self._transport.write(frame)

    def ping(self) -> None:
        """Ask for a sign of life, unless one is owed already."""
        if self.ponged:
            self.ponged, self.pinged_at = False, time.monotonic()
            self.ask(0, "ping", None, self._pong)

    def silent_s(self) -> float:
        """Return the seconds since it should have answered."""
        return 0.0 if self.ponged else time.monotonic() - self.pinged_at

    def memory(self) -> int:
        """Resident bytes; 0 where the system does not say."""
        try:
            with open(f"/proc/{self.pid}/statm") as statm:
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0

    def kill(self, why: str) -> None:
        """Kill it and whatever it has started. `why` completes the sentence "its worker process was killed: "."""
        if not self.ending:
            self.ending, self._why = True, why
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def died(self) -> bool:
        """Return whether it has ended by itself. Leaves it unreaped, so that its process group's number stays taken."""
        if self._process.returncode is not None or not hasattr(os, "waitid"):  # macOS has none before Python 3.13
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def finish(self) -> None:
        """Take away what is left of a process that has ended, or has stopped listening."""
        if self._reaper is None:
            self._reaper = self._loop.create_task(self._reap())

    def data_received(self, data: bytes) -> None:
        results: list[tuple[Answered, Any]] = []
        try:
            for (call, kind, detail), body in self._unpacker.feed(data):
                results.append((self._calls.pop(call), unpack_result(kind, detail, body)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self.kill(f"it wrote what is no reply ({describe(error)})")
        for answered, result in results:
            answered(result)

    def connection_lost(self, exc: Exception | None) -> None:
        self.finish()

    async def _connect(self, ours: socket.socket, reading: int) -> None:
        output = os.fdopen(reading, "rb", 0)
        self._output, _ = await self._loop.connect_read_pipe(lambda: _Output(self), output)
        self._transport, _ = await self._loop.create_unix_connection(lambda: self, sock=ours)
        self._transport.writelines(self._unsent)
        self._unsent.clear()

    def _started(self, result: Any) -> None:
        self._overdue.cancel()
        if isinstance(result, EnvironmentFailure):
            self.error = EnvironmentCrashed(f"{self.env.name} cannot be started in a worker process: {result}")
            return
        self.ready = True
        self._on_ready(self)

    def _pong(self, _: Any) -> None:
        self.ponged = True

    async def _reap(self) -> None:
        for _ in range(100):  # the socket ends a moment before the process does
            if self.died():
                break
            await asyncio.sleep(0.005)
        by_itself, self.ending = self.died(), True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        while (status := self._process.poll()) is None:
            await asyncio.sleep(0.005)
        if self._why is not None:
            how = f"was killed: {self._why}"
        elif not by_itself:
            how = "was killed: it had closed its connection"
        else:
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with code {status}"
        if self.error is None:
            self.error = EnvironmentCrashed(f"{self.env.name}: its worker process {how}")
        self._overdue.cancel()
        self._calls.clear()
        await asyncio.gather(self._connecting, return_exceptions=True)
        for transport in (self._transport, self._output):
            if transport is not None:
                transport.close()
        self._on_end(self)
        self.gone.set()


class _Output(asyncio.Protocol):
    """The output of a process goes to the server's log, by lines, and not faster than the log can take."""

    def __init__(self, process: WorkerProcess) -> None:
        self._process, self._line = process, b""
        self._since, self._bytes, self._lines = 0.0, 0, 0

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if now - self._since >= 1:
            if self._bytes > OUTPUT_PER_S:
                self._log(f"({self._bytes} bytes in a second, most of which were dropped)")
            elif self._lines > LINES_PER_S:
                self._log(f"({self._lines - LINES_PER_S} more lines)")
            self._since, self._bytes, self._lines = now, 0, 0
        self._bytes += len(data)
        if self._bytes > OUTPUT_PER_S:
            self._line = b""
            return
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > 8 * LINE:
            lines, self._line = [*lines, self._line], b""
        for line in lines:
            self._print(line)

    def eof_received(self) -> None:
        self._print(self._line)

    def _print(self, line: bytes) -> None:
        self._lines += bool(line)
        if line and self._lines <= LINES_PER_S:
            text = line[: 4 * LINE].decode(errors="replace")[:LINE].rstrip()
            self._log("".join(c if c.isprintable() else "\ufffd" for c in text))

    def _log(self, line: str) -> None:
        note(_log, "environment printed", env=self._process.env.name, worker=self._process.pid, line=line)
