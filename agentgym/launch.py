"""Serving worlds from a process of their own, for examples, tests and notebooks."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agentgym.errors import MissingDependency, UsageError

ANNOUNCED = re.compile(r"serving at (http\S+)")
"""What a server prints once it answers, and its URL."""


@contextlib.contextmanager
def server_process(worlds: Sequence[str], *, startup_s: float = 60.0, options: Sequence[str] = ()) -> Iterator[str]:
    """Serve worlds from a process of their own; yields the URL. The process ends with the block, or with this process.

    `options` are further ones of `python -m agentgym_servers.environment`. What can be imported here can be imported
    there. Raises UsageError with the end of the server's log when it does not start within `startup_s` seconds, and
    MissingDependency without the extra "serve".
    """
    command, environment = server_command(worlds, options)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    log: collections.deque[str] = collections.deque(maxlen=30)
    announced = threading.Event()
    url: list[str] = []

    def read_log(lines: Any) -> None:
        for line in lines:
            log.append(line.decode(errors="replace").rstrip())
            if not url and (found := ANNOUNCED.search(log[-1])):
                url.append(found[1])
                announced.set()
        announced.set()

    reader = threading.Thread(target=read_log, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        announced.wait(startup_s)
        if not url:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)  # its output has ended, so it is about to
            raise _not_started(worlds, startup_s, process.poll(), log)
        yield url[0]
    finally:
        process.stdin.close()  # asks it to stop
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        process.stdout.close()


def server_command(worlds: Sequence[str], options: Sequence[str] = ()) -> tuple[list[str], dict[str, str]]:
    """Command and environment variables of a server that takes a free port and ends with its standard input."""
    command = [sys.executable, "-m", "agentgym_servers.environment", *worlds, "--port", "0", "--die-with-stdin"]
    path = os.pathsep.join(folder for folder in sys.path if folder)
    return [*command, *options], {**os.environ, "PYTHONPATH": path}


def end_of(log: Iterable[str]) -> str:
    """The last lines of a server's log, for an error message."""
    return "The end of its log:\n{}".format("\n".join(log) or "(empty)")


def _not_started(worlds: Sequence[str], startup_s: float, status: int | None, log: Iterable[str]) -> UsageError:
    packages = "fastapi|prometheus_client|pythonjsonlogger|starlette|uvicorn"
    if missing := re.search(rf"No module named '({packages})", "\n".join(log)):
        return MissingDependency(f"serving worlds needs {missing[1]}: pip install 'agentgym[serve]'")
    how = f"did not answer within {startup_s:g} s" if status is None else f"ended with status {status}"
    return UsageError(f"the server of {', '.join(worlds)} {how}. {end_of(log)}")
