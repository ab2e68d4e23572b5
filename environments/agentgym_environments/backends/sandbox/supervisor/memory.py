"""Memory that the processes of a sandbox take of the machine, looked at often enough for a limit to hold.

Where a control group counts it too, this is what ends a command with a sentence before the kernel picks a process.
"""

from __future__ import annotations

import _socket
import contextlib
import os
import struct
from typing import Any

PAGE = os.sysconf("SC_PAGE_SIZE")
HANDLE_BYTES = 64 << 10
"""The most that an open file holds beside the memory of its process: a pipe's buffer."""
FILE_BYTES = 1536
"""An inode in memory with its name, attributes apart."""
MAPPING_BYTES = 512
MAX_MAPS_BYTES = 256 << 10
"""Length of a process's list of mappings that is read; a longer one counts as the longest that the kernel allows."""
MAX_MAPPINGS = 1 << 16
LOCK_BYTES = 256
MAX_LOCKS_BYTES = 256 << 10
"""Length of the list of file locks that is read: about 5,000; more of them pass every limit."""
MAX_HANDLES = 256
"""RLIMIT_NOFILE of a command."""
UNKNOWN_TCP_BYTES = 8 << 20
"""A TCP socket where the kernel does not say what it holds."""

MAX_PAUSE_S, MIN_PAUSE_S = 0.05, 0.004
BYTES_A_SECOND = 4 << 30
"""Memory that a core can fill, page by page."""


class Meter:
    """The memory of all processes of the sandbox but this one, in bytes.

    It counts, by what the kernel says or by the most that a thing can hold: pages of processes, page tables, mappings,
    open files and locks, sockets (those that no process holds as well), and files beyond their content. The content of
    files is held by the sizes of the folders; other memory the seccomp filter refuses.
    """

    def __init__(self, limit: int, cpus: float, folders: tuple[str, ...]) -> None:
        self.limit, self.cpus, self.folders = limit, cpus, folders
        self.socket = 2 * _number("/proc/sys/net/core/wmem_default", 212992)
        """A socket takes a message while its buffer is not full, so that it may hold nearly two of them."""
        self._diagnosis: Any = None
        with contextlib.suppress(OSError):
            handle = _socket.socket(16, 3 | _socket.SOCK_CLOEXEC, 4)  # AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG
            handle.settimeout(1)
            self._diagnosis = handle
        self._own_sockets = _sockets()

    def used(self) -> int:
        """Return an upper bound, and what is closer where that is over the limit."""
        processes = [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        others = self._sockets() + sum(map(_handles, processes)) * HANDLE_BYTES
        others += sum(map(file_count, self.folders)) * FILE_BYTES + _locks()
        for pages in (_mapped, _resident, _shared_once):
            found = others + sum(map(pages, processes))
            if found <= self.limit:
                return found
        return found

    def pause_s(self, used: int) -> float:
        """Seconds in which what is left of the limit cannot be filled."""
        return min(MAX_PAUSE_S, max(MIN_PAUSE_S, (self.limit - used) / BYTES_A_SECOND / max(1.0, self.cpus)))

    def _sockets(self) -> int:
        count = _sockets() - self._own_sockets
        if count <= 0:
            return 0
        try:
            return count * self.socket + tcp_bytes(self._diagnosis)
        except (OSError, AttributeError, struct.error):
            return count * max(self.socket, UNKNOWN_TCP_BYTES)


def file_count(folder: str) -> int:
    """Files and folders on the file system that is mounted there; extended attributes count as some."""
    found = os.statvfs(folder)
    return found.f_files - found.f_ffree


def tcp_bytes(diagnosis: Any) -> int:
    """Memory in the buffers of all TCP sockets, as the kernel tells it to `ss`."""
    total = 0
    for family in (2, 10):
        # nlmsghdr: length, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP; inet_diag_req_v2 with INET_DIAG_SKMEMINFO
        diagnosis.send(struct.pack("=IHHII BBBBI48x", 72, 20, 0x301, 0, 0, family, 6, 1 << 6, 0, 0xFFFFFFFF))
        done = False
        while not done:
            data, at = diagnosis.recv(1 << 17), 0
            while at + 16 <= len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind == 2:
                    raise OSError("the kernel has no such diagnosis")
                done = done or kind == 3
                total += _message_bytes(data[at + 16 + 72 : at + length]) if kind == 20 else 0
                at += (length + 3) & ~3
    return total


def _message_bytes(attributes: bytes) -> int:
    at = 0
    while at + 4 <= len(attributes):
        length, kind = struct.unpack_from("=HH", attributes, at)
        if kind == 7:
            received, _, sent, _, forward, queued, options, backlog = struct.unpack_from("=8I", attributes, at + 4)
            return received + max(sent, queued) + forward + options + backlog
        at += max(4, (length + 3) & ~3)
    return 0


def _sockets() -> int:
    """Sockets of this network, also those that are on their way in a message or wait to be accepted."""
    try:
        with open("/proc/net/sockstat") as file:
            return int(file.readline().split()[2])
    except (OSError, IndexError, ValueError):
        return 0


def _handles(process: int) -> int:
    try:
        return len(os.listdir(f"/proc/{process}/fd"))
    except PermissionError:
        return MAX_HANDLES
    except OSError:
        return 0


def _locks() -> int:
    with contextlib.suppress(OSError), open("/proc/locks", "rb") as file:
        found = file.read(MAX_LOCKS_BYTES)
        return found.count(b"\n") * LOCK_BYTES if len(found) < MAX_LOCKS_BYTES else 1 << 62
    return 0


def _mapped(process: int) -> int:
    try:
        with open(f"/proc/{process}/statm") as file:
            return int(file.read().split()[0]) * PAGE
    except (OSError, IndexError):
        return 0


def _resident(process: int) -> int:
    """Pages of its own, page tables and mappings. Pages of files are on a disk, or in a folder whose size is held."""
    return _status(process, ("RssAnon", "VmPTE", "VmSwap")) + _mappings(process)


def _shared_once(process: int) -> int:
    """The same, with pages that it shares with others counted once for all of them."""
    try:
        with open(f"/proc/{process}/smaps_rollup") as file:
            pages = next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss_Anon:"))
    except (OSError, StopIteration):
        return _resident(process)
    return pages + _status(process, ("VmPTE", "VmSwap")) + _mappings(process)


def _status(process: int, names: tuple[str, ...]) -> int:
    total = 0
    with contextlib.suppress(OSError), open(f"/proc/{process}/status") as file:
        for line in file:
            name, _, value = line.partition(":")
            total += int(value.split()[0]) << 10 if name in names else 0
    return total


def _mappings(process: int) -> int:
    try:
        with open(f"/proc/{process}/maps", "rb") as file:
            found = file.read(MAX_MAPS_BYTES)
    except PermissionError:
        return MAX_MAPPINGS * MAPPING_BYTES
    except OSError:
        return 0
    return (MAX_MAPPINGS if len(found) == MAX_MAPS_BYTES else found.count(b"\n")) * MAPPING_BYTES


def _number(path: str, otherwise: int) -> int:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return otherwise
