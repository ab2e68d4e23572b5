"""Reaper of what a killed browser leaves behind: its children come to this process, which reaps them."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
NAMES = ("chrom", "headless_shell", "google-chrome")


def adopt() -> None:
    """Become the process that gets the children of dead descendants. Does nothing where that is not known (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap() -> int:
    """Reap dead browser processes that were adopted; returns how many. Other children are left to who started them."""
    reaped = 0
    for pid in _children():
        with contextlib.suppress(OSError, ChildProcessError):
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            if rest.split()[0] == "Z" and name.startswith(NAMES):
                reaped += os.waitpid(pid, os.WNOHANG)[0] == pid
    return reaped


def _children() -> list[int]:
    """Children of this process, whichever thread started them."""
    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found
