"""Servers in processes that tests kill, and the search for what such a process leaves behind."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

MARK = "AGENTGYM_CHAOS"
"""Every process that a test starts, and whatever those start, has this in its environment."""
START_S = 60.0


def fixed_port() -> int:
    """A free port below those that the system gives to outgoing connections, to be taken again after a crash."""
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


class Server:
    """`python -m MODULE ARGUMENTS --port PORT`, to be killed and started again at the same port.

    `within` is a command that runs it: ("unshare", "-rm", ...).
    """

    def __init__(self, log: Path, module: str, *arguments: str, within: Sequence[str] = ()) -> None:
        self.port, self.mark = fixed_port(), uuid.uuid4().hex
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self._command = [*within, sys.executable, "-m", module, *arguments, "--port", str(self.port)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and come back when it answers."""
        path = os.pathsep.join(folder for folder in sys.path if folder)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path, MARK: self.mark},
            )
        wait_for(lambda: self._answers(self._process), START_S, lambda: f"the server started:\n{self.tail()}")

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Ask it to end; gives its exit status."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.terminate()
        return self._process.wait(20)

    def get(self, path: str) -> Any:
        return httpx.get(self.url + path, timeout=10).raise_for_status().json()

    def workers(self) -> list[int]:
        """The ids of its worker processes."""
        return [
            pid
            for pid in marked(self.mark)
            if "agentgym_servers.env_server.workers.worker_main" in command_of(pid) and leads(pid)
        ]

    def left_behind(self) -> list[str]:
        """The command lines of processes that it, or one before it, has started and that still run."""
        own = self._process.pid if self._process is not None and self._process.poll() is None else None
        return [f"{pid} {command_of(pid)}" for pid in marked(self.mark) if pid != own]

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def tracebacks(self) -> list[str]:
        """What the server's log says of exceptions that nobody handled."""
        return re.findall(r"Traceback[^\n]*(?:\n.*){1,40}", self.log.read_text(errors="replace"))

    def _answers(self, process: subprocess.Popen[bytes] | None) -> bool:
        assert process is not None
        assert process.poll() is None, f"the server ended while starting:\n{self.tail()}"
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


def wait_for(condition: Any, at_most_s: float, what: Any) -> None:
    """Wait until the condition holds. Fails, saying `what()`, when it does not in time."""
    until = time.monotonic() + at_most_s
    while not condition():
        assert time.monotonic() < until, f"not within {at_most_s:g} s: {what()}"
        time.sleep(0.05)


def marked(mark: str) -> list[int]:
    """Processes with this mark in their environment."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                environment = Path("/proc", name, "environ").read_bytes()
            except OSError:  # ended meanwhile, or another user's
                continue
            if wanted in environment.split(b"\0"):
                found.append(int(name))
    return found


def command_of(pid: int) -> str:
    """Its command line; empty when it has ended."""
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def leads(pid: int) -> bool:
    """Whether it leads a process group, as workers do and their guards do not."""
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


def kill(pid: int) -> None:
    """SIGKILL, if it still runs."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
