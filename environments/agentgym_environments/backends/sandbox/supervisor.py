"""Process 1 of a sandbox. It starts commands, enforces their limits and moves files.

Its source travels as an argument of `python -I -c`, so it imports the standard library alone. It reads one JSON
request a line from stdin and answers each with one JSON line on stdout. When stdin ends, which is when whoever
started it has gone, it exits, and the kernel ends every other process of the sandbox with it. As process 1 it cannot
be killed from inside, and it makes itself untraceable: what it remembers (hashes of the first files) cannot be changed.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import hashlib
import io
import json
import os
import re
import resource
import select
import signal
import stat
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

WRITABLE = ("/work", "/tmp", "/dev/shm")
LOOK_EVERY_S = 0.05
STATE_BYTES = 96 * 1024
STATE_FD = 9
SHELL = """
trap '{ pwd; declare -p; printf "\\0"; declare -f; } >&9 2>/dev/null' EXIT
cd -- "$1" 2>/dev/null || cd /work
eval "$2" 2>/dev/null 9>&-
eval "$3"
"""
# The shell's own variables: setting these again is an error or changes what the next command means.
OWN = re.compile(
    "BASH.*|COLUMNS|COMP_WORDBREAKS|DIRSTACK|EPOCH.*|EUID|FUNCNAME|GROUPS|HISTCMD|LINENO|LINES|OPTERR|OPTIND|PIPESTATUS"
    "|PPID|PWD|S?RANDOM|SECONDS|SHELLOPTS|SHLVL|UID|_"
)


class Supervisor:
    """The sandbox from inside. `limits` are the fields of `agentgym_environments.backends.sandbox.Limits`."""

    def __init__(self, limits: dict[str, Any], env: dict[str, str], shell: str) -> None:
        self.limits, self.env, self.shell = limits, env, shell
        self.folder, self.state = "/work", ""
        self.first: dict[str, str] = {}
        self._known_hashes: dict[str, tuple[tuple[int, ...], str]] = {}

    # Requests, by name.

    def start(self, files: dict[str, str]) -> None:
        for path, content in files.items():
            if problem := self.write(path, content):
                raise OSError(f"{path}: {problem}")
        self.first = self._hashes()

    def run(self, command: str, timeout_s: float) -> dict[str, Any]:
        """The command's output, exit code, and why it was stopped ("" when it was not). Nothing is left running."""
        child, output, state = self._spawn(command, timeout_s)
        try:
            return self._watch(child, output, state, time.monotonic() + timeout_s)
        finally:
            end_all()
            os.close(output)
            os.close(state)

    def read(self, path: str) -> str | None:
        """A regular file's content in base64; None when there is none or it is larger than the disk."""
        try:
            handle = os.open(os.path.join("/work", path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):  # a ValueError is of a NUL in the name
            return None
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or found.st_size > self.limits["disk_mb"] << 20:
                return None
            with open(handle, "rb", closefd=False) as file:
                return base64.b64encode(file.read(self.limits["disk_mb"] << 20)).decode()
        finally:
            os.close(handle)

    def write(self, path: str, content: str) -> str:
        """Return why it could not be written; "" when it was."""
        path = os.path.join("/work", path)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o644), "wb") as file:
                file.write(base64.b64decode(content))
        except OSError as error:
            return os.strerror(error.errno or 0)
        except ValueError:
            return "no such name can be"
        return ""

    def changes(self) -> dict[str, str | None]:
        """Files of /work that are not as they were at the start, in base64; None for those that are gone."""
        now = self._hashes()
        changed = {path: self.read(path) for path in now if now[path] != self.first.get(path)}
        return {**changed, **{path: None for path in self.first if path not in now}}

    def digest(self) -> str:
        """A hash of every file of /work."""
        return hashlib.sha256(json.dumps(sorted(self._hashes().items())).encode()).hexdigest()

    def snapshot(self) -> dict[str, Any]:
        import tarfile

        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
            for root in WRITABLE[:2]:
                for path in walk(root, self.limits["files"]):
                    with contextlib.suppress(OSError):
                        archive.add(path, recursive=False)
        files = base64.b64encode(buffer.getvalue()).decode()
        return {"files": files, "folder": self.folder, "state": self.state, "first": self.first}

    def restore(self, files: str, folder: str, state: str, first: dict[str, str]) -> None:
        import tarfile

        for root in WRITABLE:
            empty(root)
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(files))) as archive:
            archive.extraction_filter = lambda member, path: member  # it is the sandbox's own; older Pythons have none
            for member in archive:
                with contextlib.suppress(OSError):
                    archive.extract(member, "/", set_attrs=not member.isdir())
        self.folder, self.state, self.first = folder, state, first

    # How a command is run.

    def _spawn(self, command: str, timeout_s: float) -> tuple[int, int, int]:
        output, output_end = os.pipe()
        state, state_end = os.pipe()
        arguments = [self.shell, "-c", SHELL, "bash", self.folder, self.state, command]
        child = os.fork()
        if child == 0:
            try:
                nothing = os.open("/dev/null", os.O_RDONLY)
                state_end = os.dup2(state_end, 200)
                for source, target in ((nothing, 0), (output_end, 1), (output_end, 2), (state_end, STATE_FD)):
                    os.dup2(source, target)
                os.closerange(3, STATE_FD)
                os.closerange(STATE_FD + 1, 256)
                self._limit(timeout_s)
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                os.setsid()
                os.chdir("/work")
                os.execve(self.shell, arguments, self.env)
            except BaseException as error:  # noqa: BLE001  (nothing may return from a forked child)
                os.write(2, f"the command could not be started: {error}\n".encode())
            finally:
                os._exit(126)
        os.close(output_end)
        os.close(state_end)
        return child, output, state

    def _limit(self, timeout_s: float) -> None:
        for kind, most in (
            (resource.RLIMIT_AS, self.limits["memory_mb"] << 20),
            (resource.RLIMIT_NPROC, self.limits["processes"]),
            (resource.RLIMIT_CPU, int(timeout_s) + 1),
            (resource.RLIMIT_FSIZE, self.limits["disk_mb"] << 20),
            (resource.RLIMIT_NOFILE, 256),
            (resource.RLIMIT_CORE, 0),
        ):
            allowed = resource.getrlimit(kind)[1]
            most = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
            resource.setrlimit(kind, (most, most))
        with contextlib.suppress(OSError):
            os.nice(5)

    def _watch(self, child: int, output: int, state: int, deadline: float) -> dict[str, Any]:
        """Collect output until the shell ends, the deadline passes, or a limit that the kernel does not hold is met."""
        collected, kept, stopped, code = Output(self.limits["output_kb"] << 10), bytearray(), "", None
        pipes, files = {output, state}, {path: count(path) for path in WRITABLE}
        while code is None:
            ready = select.select([0, WAKE, *pipes], [], [], LOOK_EVERY_S)[0]
            if 0 in ready:
                os._exit(0)  # nobody sends while a command runs: this is the end of stdin
            for pipe in pipes & set(ready):
                piece = os.read(pipe, 65536)
                if not piece:
                    pipes.discard(pipe)
                elif pipe == output:
                    collected.add(piece)
                elif len(kept) < STATE_BYTES:
                    kept += piece
            if WAKE in ready:
                os.read(WAKE, 4096)
            code = reap(child)
            if code is None and (stopped := self._too_much(deadline, files)):
                end_all()
                code = 124 if stopped.startswith("time") else 137
        for pipe in pipes:
            drain(pipe, collected.add if pipe == output else kept.extend)
        if not stopped:
            self._keep(kept)
        return {"output": collected.text(), "code": code, "stopped": stopped}

    def _too_much(self, deadline: float, files: dict[str, int]) -> str:
        """Return which limit is passed; `files` are those before the command, so that one that removes some may go
        on."""
        if time.monotonic() > deadline:
            return "time"
        for path in WRITABLE:
            if count(path) > max(self.limits["files"], files[path]):
                return f"more than {self.limits['files']} files in {path}"
        used = sum(resident(int(name)) for name in os.listdir("/proc") if name.isdigit())
        return f"memory: more than {self.limits['memory_mb']} MB" if used > self.limits["memory_mb"] << 20 else ""

    def _keep(self, kept: bytearray) -> None:
        """Remember the shell's folder, variables and functions for the next command."""
        if len(kept) >= STATE_BYTES:
            return
        folder, newline, rest = kept.decode(errors="replace").partition("\n")
        if not newline:
            return  # the command replaced the shell: all stays as it was
        variables, _, functions = rest.partition("\0")
        kept_ones = [line for line in f"\n{variables.rstrip()}".split("\ndeclare ")[1:] if not own(line)]
        self.folder, self.state = folder, "\n".join([*(f"declare {line}" for line in kept_ones), functions])

    def _hashes(self) -> dict[str, str]:
        """The hash of each file of /work; one that has not changed since (its inode says so) is not read again."""
        hashes = {}
        for path in walk("/work", self.limits["files"]):
            found = os.lstat(path)
            name = path[len("/work/") :]
            if stat.S_ISLNK(found.st_mode):
                hashes[name] = f"link {os.readlink(path)}"
            elif stat.S_ISREG(found.st_mode):
                mark = (found.st_ino, found.st_ctime_ns, found.st_size)
                if self._known_hashes.get(name, ((), ""))[0] != mark:
                    content = base64.b64decode(self.read(name) or "")
                    self._known_hashes[name] = mark, f"{found.st_mode & 0o100:o} {hashlib.sha256(content).hexdigest()}"
                hashes[name] = self._known_hashes[name][1]
        return hashes


class Output:
    """The first and the last half of what a command says, when it says more than `most` bytes."""

    def __init__(self, most: int) -> None:
        self.head, self.tail, self.half, self.all = bytearray(), bytearray(), most // 2, 0

    def add(self, piece: bytes) -> None:
        self.all += len(piece)
        room = self.half - len(self.head)
        self.head += piece[:room] if room > 0 else b""
        self.tail = (self.tail + piece[max(room, 0) :])[-self.half :]

    def text(self) -> str:
        left_out = self.all - len(self.head) - len(self.tail)
        middle = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out else b""
        return (self.head + middle + self.tail).decode(errors="replace")


def own(line: str) -> bool:
    """`-x NAME="value"` of a variable that is the shell's own, or that cannot be set again."""
    flags, _, name = line.partition(" ")
    return "r" in flags or bool(OWN.fullmatch(name.partition("=")[0]))


def walk(root: str, most: int) -> Iterator[str]:
    """Paths below `root` in order, folders included, at most so many; links are not followed."""
    listed = 0
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted([*folders, *files]):
            listed += 1
            if listed > most:
                return
            yield os.path.join(folder, name)


def empty(root: str) -> None:
    """Remove all that is in a folder, whatever the agent has made of its permissions."""
    for folder, folders, files in os.walk(root, topdown=True):
        for name in folders:
            if not os.path.islink(os.path.join(folder, name)):
                os.chmod(os.path.join(folder, name), 0o777)
            else:
                os.unlink(os.path.join(folder, name))
        for name in files:
            os.unlink(os.path.join(folder, name))
    for folder, folders, _ in os.walk(root, topdown=False):
        for name in folders:
            os.rmdir(os.path.join(folder, name))


def count(folder: str) -> int:
    """Files and folders on the file system that is mounted there."""
    found = os.statvfs(folder)
    return found.f_files - found.f_ffree


def resident(process: int) -> int:
    try:
        with open(f"/proc/{process}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def reap(child: int) -> int | None:
    """Collect every process that has ended; the exit code of `child` when it is one of them."""
    code = None
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if process == 0:
            return code
        if process == child:
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code


def end_all() -> None:
    """Kill every process of the sandbox but this one, until none is left."""
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def drain(pipe: int, take: Any) -> None:
    """Take what is in the pipe already; whoever still holds its other end is not waited for."""
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        for _ in range(64):
            piece = os.read(pipe, 65536)
            if not piece:
                return
            take(piece)


def lock_in(uid: int | None, refused: bytes) -> None:
    """Become `uid`, let no other process of it look into this one, and put a seccomp filter on all that follow."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    code = ctypes.create_string_buffer(refused, len(refused))
    filtered = ctypes.create_string_buffer(struct.pack("HP", len(refused) // 8, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    # PR_SET_DUMPABLE 0, PR_SET_NO_NEW_PRIVS 1, PR_SET_SECCOMP SECCOMP_MODE_FILTER
    for option, value, more in ((4, 0, None), (38, 1, None), (22, 2, ctypes.addressof(filtered)))[
        : 3 if refused else 2
    ]:
        if libc.prctl(option, ctypes.c_ulong(value), ctypes.c_void_p(more), 0, 0):
            raise OSError(ctypes.get_errno(), f"prctl {option}")
    os.umask(0o022)


def main() -> None:
    global WAKE
    if os.getpid() != 1:
        sys.exit("not process 1: what is killed here would be every process of this user")
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    opening = json.loads(requests.readline())
    lock_in(opening.pop("uid"), base64.b64decode(opening.pop("refused")))
    WAKE, wake_end = os.pipe()
    os.set_blocking(wake_end, False)
    os.set_blocking(WAKE, False)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    sandbox = Supervisor(**opening)
    replies.write(b'{"result": true}\n')
    replies.flush()
    for line in requests:
        request = json.loads(line)
        try:
            answer = {"result": getattr(sandbox, request["do"])(**request["with"])}
        except OSError as error:
            answer = {"error": f"{request['do']}: {error}"}
        replies.write(json.dumps(answer).encode() + b"\n")
        replies.flush()


WAKE = -1

if __name__ == "__main__":
    main()
