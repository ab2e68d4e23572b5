"""Memory that a sandbox takes of the machine: of its control group, or of its processes where none can be made."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

PLACES = (("/sys/fs/cgroup", "memory.current"), ("/sys/fs/cgroup/memory", "memory.usage_in_bytes"))
"""Version 2 and version 1 of control groups."""


def tree(process: int) -> list[int]:
    """A process and all below it."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(one for child in children for one in tree(int(child)))]


def supervisor(process: int) -> int:
    """Process 1 of the sandbox that `process` started, by its number here."""
    return tree(process)[1]


@contextlib.contextmanager
def measured(process: int) -> Iterator[Callable[[], int]]:
    """A function that returns the bytes that a sandbox has of the machine now.

    A group counts pages, folders in memory, sockets and what else the kernel holds; else it is proportional pages.
    """
    for root, usage in PLACES:
        group = Path(root, f"agentgym-test-{uuid.uuid4().hex[:8]}")
        with contextlib.suppress(OSError):
            group.mkdir()
        if (group / usage).exists():
            for one in tree(process):
                (group / "cgroup.procs").write_text(str(one))
            yield lambda file=group / usage: int(file.read_text())
            break
        with contextlib.suppress(OSError):
            group.rmdir()
    else:
        yield lambda: sum(map(pages, tree(process)))
        return
    for _ in range(200):  # its processes end when the sandbox is closed
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)


def pages(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
