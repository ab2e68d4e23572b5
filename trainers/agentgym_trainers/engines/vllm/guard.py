"""Stands between a run and the vLLM server that it starts.

    python -P guard.py COMMAND ...

runs the command in a session of its own and ends everything in it when the command ends, when told to, or when its
standard input does, which happens however the process that started it dies. It is started as a file and imports the
standard library alone: by the name of a module it would import PyTorch first.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

GRACE_S = 10.0
"""Seconds between asking processes to end and killing them."""
PR_SET_PDEATHSIG = 1
"""Constant of Linux's prctl(2)."""


def guard(command: Sequence[str]) -> int:
    """Run a command as the head of this file says; its status."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_end_with_parent)

    def end(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)

    def end_with_input() -> None:
        # Unbuffered: the lock of a buffer, held in this thread, would abort the interpreter's exit.
        while os.read(sys.stdin.fileno(), 4096):
            pass
        end()
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    threading.Thread(target=end_with_input, daemon=True).start()
    status = child.wait()
    with contextlib.suppress(ProcessLookupError):  # what it started and left behind
        os.killpg(child.pid, signal.SIGKILL)
    return status if status >= 0 else 128 - status  # of a signal, as a shell tells it


def _end_with_parent() -> None:
    """Ask the kernel to end this process with its parent, before it becomes the command: what stands between may be
    killed itself, as Ray kills children of an actor that ends. Linux alone has this."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(guard(sys.argv[1:]))
