"""Serving worlds from a process of their own, for examples, tests and notebooks."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from agentgym.errors import MissingDependency, UsageError


@contextlib.contextmanager
def server_process(worlds: Sequence[str], *, startup_s: float = 60.0, options: Sequence[str] = ()) -> Iterator[str]:
    """Serve worlds from a process of their own; yields the URL. The process ends with the block, or with this process.

    `options` are further ones of `python -m agentgym_servers.environment`. What can be imported here can be imported
    there. Raises UsageError with the end of the server's log when it does not start within `startup_s` seconds, and
    MissingDependency without the extra "serve".
    """
    command = [sys.executable, "-m", "agentgym_servers.environment", *worlds, "--port", "0", "--die-with-stdin"]
    path = os.pathsep.join(folder for folder in sys.path if folder)
    process = subprocess.Popen(
        [*command, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    log: collections.deque[str] = collections.deque(maxlen=30)
    announced = threading.Event()
    url: list[str] = []

    def read_log(lines: Any) -> None:
        for line in lines:
            log.append(line.decode(errors="replace").rstrip())
            if not url and (found := re.search(r"serving at (http\S+)", log[-1])):
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
            raise _not_started(worlds, startup_s, process.poll(), "\n".join(log))
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


def _not_started(worlds: Sequence[str], startup_s: float, status: int | None, log: str) -> UsageError:
    if missing := re.search(r"No module named '(fastapi|uvicorn|starlette)", log):
        return MissingDependency(f"serving worlds needs {missing[1]}: pip install 'agentgym[serve]'")
    how = f"did not answer within {startup_s:g} s" if status is None else f"ended with status {status}"
    return UsageError(f"the server of {', '.join(worlds)} {how}. The end of its log:\n{log or '(empty)'}")
