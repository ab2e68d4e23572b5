"""Process 1 of a sandbox. It answers requests: commands, files, snapshots.

It reads one JSON request a line from stdin and answers each with one JSON line on stdout. When stdin ends, which is
when whoever started it has gone, it exits, and the kernel ends every other process of the sandbox with it. As process 1
it cannot be killed from inside, it makes itself untraceable, and the commands' seccomp filter refuses to change its
limits, cores and priority: what it remembers (hashes of the first files) cannot be changed.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import json
import os
import resource
import signal
import stat
import sys
from typing import Any

from agentgym_environments.backends.sandbox.supervisor import archive, shell, tree

OWN_MB = 256
"""Memory that this process may take, beside what it takes to put files of the disk's size where they belong."""


class Supervisor:
    """The sandbox from inside; every public method is a request."""

    def __init__(self, limits: dict[str, Any], commands: shell.Shell) -> None:
        self.limits, self._shell, self.run = limits, commands, commands.run
        self._first: dict[str, str] = {}
        self._known_hashes: dict[int, tuple[tuple[int, ...], str]] = {}

    def start(self, files: dict[str, str]) -> None:
        for path, content in files.items():
            if problem := self.write(path, content):
                raise OSError(f"{path}: {problem}")
        self._first = self._compare()[0]

    def read(self, path: str) -> str | None:
        """A regular file's content in base64; None when there is none."""
        content = tree.read(path)
        return None if content is None else base64.b64encode(content).decode()

    def write(self, path: str, content: str) -> str:
        """Return why it could not be written; "" when it was."""
        return tree.write(path, base64.b64decode(content))

    def changes(self) -> dict[str, str | None]:
        """Files of /work that are not as they were at the start, in base64; None for those that are gone.

        A link counts as the file of /work that it leads to; pipes, sockets and other links are no files. Raises
        Refused where there is more than may be looked at.
        """
        hashes, contents, left_out = self._compare(contents=True)
        if left_out:
            more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
            raise archive.Refused(f"the files cannot be read: {', '.join(left_out[:3])}{more}; remove some")
        gone = [path for path in self._first if path not in contents and hashes.get(path, "link").startswith("link")]
        return {**contents, **dict.fromkeys(gone)}

    def digest(self) -> str:
        """A hash of every file and link of /work."""
        hashes, _, left_out = self._compare()
        return hashlib.sha256(json.dumps([sorted(hashes.items()), left_out]).encode()).hexdigest()

    def snapshot(self) -> dict[str, Any]:
        files = base64.b64encode(archive.pack(self.limits["files"], self.limits["disk_mb"] << 21)).decode()
        return {"files": files, "folder": self._shell.folder, "state": self._shell.state, "first": self._first}

    def restore(self, files: str, folder: str, state: str, first: dict[str, str]) -> None:
        archive.unpack(base64.b64decode(files))
        self._shell.folder, self._shell.state, self._first = folder, state, first

    def _compare(self, contents: bool = False) -> tuple[dict[str, str], dict[str, str | None], list[str]]:
        """Hashes of the files of /work, the contents of those that have changed if asked for, and what is left out.

        A file that has not changed since the last time (its inode says so) is not read again.
        """
        walk, hashes, changed, known, total = tree.Walk("/work", self.limits["files"]), {}, {}, {}, 0
        for entry in walk:
            found = entry.stat
            if stat.S_ISLNK(found.st_mode):
                hashes[entry.path] = f"link {os.readlink(entry.name, dir_fd=entry.folder)}"
                if contents and total <= tree.MAX_READ_BYTES and hashes[entry.path] != self._first.get(entry.path):
                    content = tree.read(entry.path)
                    total += len(content or b"")
                    if content is not None:
                        changed[entry.path] = base64.b64encode(content).decode()
            if not stat.S_ISREG(found.st_mode):
                continue
            mark = (found.st_ctime_ns, found.st_size)
            if self._known_hashes.get(found.st_ino, ((), ""))[0] == mark:
                known[found.st_ino] = self._known_hashes[found.st_ino]
            if found.st_ino not in known:
                with tree.opened(entry.folder, entry.name, found, os.O_RDONLY | tree.FILE) as handle:
                    known[found.st_ino] = mark, tree.content_hash(handle, found.st_size)
            hashes[entry.path] = f"{found.st_mode & 0o100:o} {known[found.st_ino][1]}"
            if not contents or hashes[entry.path] == self._first.get(entry.path):
                continue
            total += found.st_size
            if total <= tree.MAX_READ_BYTES:
                with tree.opened(entry.folder, entry.name, found, os.O_RDONLY | tree.FILE) as handle:
                    content = tree.regular_content(handle, tree.MAX_READ_BYTES) or b""
                changed[entry.path] = base64.b64encode(content).decode()
        if total > tree.MAX_READ_BYTES:
            walk.left_out.append(f"all that has changed (more than {tree.MAX_READ_BYTES >> 20} MB)")
        self._known_hashes = known
        return hashes, changed, walk.left_out


def answer(sandbox: Supervisor, request: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked for. Whatever fails then is of the agent's making, since nothing but its files and processes is
    here; a failure at the start is the machine's."""
    if request["do"] == "start":
        try:
            return {"result": {"value": sandbox.start(**request["with"])}}
        except OSError as error:
            return {"error": f"start: {error}"}
    try:
        return {"result": {"value": getattr(sandbox, request["do"])(**request["with"])}}
    except archive.Refused as error:
        return {"result": {"refused": str(error)}}
    except Exception as error:  # noqa: BLE001
        return {"result": {"refused": f"{request['do']} failed: {type(error).__name__}: {error}"}}


def lock_in(uid: int | None, disk_mb: int) -> None:
    """Become `uid`, let no other process of it look into this one, and take no more memory than is needed."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    libc = ctypes.CDLL(None, use_errno=True)
    shell.prctl(libc, 4, 0)  # PR_SET_DUMPABLE
    shell.prctl(libc, 38, 1)  # PR_SET_NO_NEW_PRIVS
    if hasattr(libc, "mallopt"):
        libc.mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD: what is freed goes back to the machine
    most, hard = OWN_MB + 6 * disk_mb << 20, resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):  # Python's own answer to the first is to end
        signal.signal(number, signal.SIG_IGN)


def main() -> None:
    if os.getpid() != 1:
        sys.exit("not process 1: what is killed here would be every process of this user")
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    opening = json.loads(requests.readline())
    limits, refused = opening.pop("limits"), base64.b64decode(opening.pop("refused"))
    lock_in(opening.pop("uid"), limits["disk_mb"])
    wake, wake_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    sandbox = Supervisor(limits, shell.Shell(limits, refused=refused, wake=wake, **opening))
    replies.write(b'{"result": {"value": true}}\n')
    replies.flush()
    for line in requests:
        replies.write(json.dumps(answer(sandbox, json.loads(line))).encode() + b"\n")
        replies.flush()
