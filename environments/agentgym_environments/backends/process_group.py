"""End of a process group: whatever is left of it is killed, and what this process has adopted of it is reaped."""

from __future__ import annotations

import contextlib
import os
import signal
import time

REAPED_S = 1.0


def end_group(leader: int) -> None:
    """Kill the group of `leader`, whose own process has been waited for already.

    Its other processes are grandchildren, which are not ours to wait for, unless this process adopts orphans, as it
    does once it has opened a browser: then nobody else would reap them.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    deadline = time.monotonic() + REAPED_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-leader, os.WNOHANG)[0] == 0:
                time.sleep(0.001)
