"""Processes of this machine, by their command line or their session."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil


def running(text: str) -> list[int]:
    """Processes, this one left out, with `text` in their command line."""
    found = psutil.process_iter(["cmdline"])
    return [p.pid for p in found if p.pid != os.getpid() and text in " ".join(p.info["cmdline"] or ())]


def alive(pid: int) -> bool:
    """True for a process that runs; one that has ended, and for which nobody has waited yet, does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def in_session(leader: int) -> list[int]:
    """Processes of the session that `leader` began."""
    found = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError):
            if os.getsid(pid) == leader:
                found.append(pid)
    return found
