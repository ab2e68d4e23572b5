"""Child process that answers each line of JSON on its standard input with a line of JSON on its standard output."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from agentgym.errors import EnvironmentCrashed
from agentgym_environments.backends.process_group import end_group

ANSWERING = Path(__file__).with_name("answering.py")
ENDED_S = 1.0
"""Seconds between the end of a process's output and its own end."""
CLOSE_S = 5.0
"""Seconds that a process may take to end once its standard input is closed."""


def answering(python: str, file: Path, kind: str, **arguments: Any) -> list[str]:
    """Return the command of a process whose requests, {"open": TASK}, are answered by methods of a class of a file."""
    return [python, str(ANSWERING), str(file), kind, json.dumps(arguments)]


class JsonProcess:
    """One child process, which ends with its standard input. An answer is `{"result": ...}` or `{"error": "..."}`.

    name: begins every error message. crash: the class of these errors. stderr: as for Popen; the text of a file is
    part of the error message when the process has ended. own_group: the process leads a process group, which is killed
    when the process is closed.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        crash: type[EnvironmentCrashed] = EnvironmentCrashed,
        env: Mapping[str, str] | None = None,
        stderr: IO[bytes] | int | None = None,
        own_group: bool = False,
    ) -> None:
        self.name, self.crash = name, crash
        self._log = None if isinstance(stderr, int) else stderr
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=stderr, env=env, start_new_session=own_group
        )
        self._end = weakref.finalize(self, _end, self._process, self._log, own_group)
        self._rest = b""
        self.code: int | None = None
        """Exit code of a process that ended by itself; None before, and when it was closed."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: Any, timeout_s: float | None = None, max_bytes: int | None = None) -> Any:
        """Send a request and return its result. Without an answer in time and size, the process is closed."""
        if not self._end.alive:
            raise self.crash(f"{self.name} is closed")
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        line = self._line(timeout_s, max_bytes)
        if not line:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.code = self._process.wait(ENDED_S)
            message = ""
            if self._log is not None:
                self._log.seek(0)
                message = self._log.read(2000).decode(errors="replace").strip()
            self.close()
            raise self.crash(f"{self.name} has ended{': ' if message else ''}{message}")
        try:
            answer = json.loads(line)
            if "error" not in answer:
                return answer["result"]
        except (ValueError, TypeError, KeyError) as error:
            self.close()
            raise self.crash(f"{self.name} answered {line[:100]!r}, which is no answer") from error
        raise self.crash(f"{self.name} failed: {answer['error']}")

    def close(self) -> None:
        """End the process; kill it when it does not obey. May be called twice."""
        self._end()

    def _line(self, timeout_s: float | None, max_bytes: int | None) -> bytes:
        """Return the next line; b"" when the process has ended, the time is over or the line is too long."""
        assert self._process.stdout is not None
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pipe, pieces, length = self._process.stdout.fileno(), [self._rest], len(self._rest)
        poll = select.poll()
        poll.register(pipe, select.POLLIN | select.POLLHUP)
        while max_bytes is None or length < max_bytes:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            if poll.poll(None if left is None else left * 1000):
                piece = os.read(pipe, 1 << 20)
                if not piece:
                    break
                before, newline, after = piece.partition(b"\n")
                pieces.append(before)
                length += len(before)
                if newline and (max_bytes is None or length <= max_bytes):
                    self._rest = after
                    return b"".join(pieces)
        return b""


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _end(process: subprocess.Popen[bytes], log: IO[bytes] | None, own_group: bool) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        process.wait(CLOSE_S)
    except subprocess.TimeoutExpired:
        for child in children(process.pid):  # one that has become another user may outlive its parent
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait()
    if own_group:
        end_group(process.pid)  # its own children may outlive it by a moment
    if log is not None:
        log.close()
