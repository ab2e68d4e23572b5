"""The shell of a sandbox: how a command is started, limited, watched and ended."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import resource
import select
import signal
import struct
import time
from typing import Any

from agentgym_environments.backends.sandbox.supervisor import memory, tree

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


class Shell:
    """limits: the fields of `SandboxLimits`. refused: the seccomp filter of commands. control_group: one holds their
    memory and cores. wake: a pipe that can be read when a process has ended."""

    def __init__(
        self, limits: dict[str, Any], env: dict[str, str], shell: str, refused: bytes, control_group: bool, wake: int
    ) -> None:
        self.limits, self.env, self.shell, self.wake = limits, env, shell, wake
        self.refused, self.control_group = refused, control_group
        self.folder, self.state = "/work", ""
        self._meter = memory.Meter(limits["memory_mb"] << 20, limits["cpus"], tree.WRITABLE)
        self._libc = ctypes.CDLL(None, use_errno=True)

    def run(self, command: str, timeout_s: float) -> dict[str, Any]:
        """The command's output, exit code, and why it was stopped ("" when it was not). Nothing is left running."""
        child, output, state = self._spawn(command, timeout_s)
        try:
            return self._watch(child, output, state, time.monotonic() + timeout_s)
        finally:
            end_all()
            os.close(output)
            os.close(state)

    def _spawn(self, command: str, timeout_s: float) -> tuple[int, int, int]:
        output, output_end = os.pipe()
        state, state_end = os.pipe()
        for end in (output, state):  # the command may open its pipe for reading too, and take what we would wait for
            os.set_blocking(end, False)
        arguments = [self.shell, "-c", SHELL, "bash", self.folder, self.state, command]
        core = self._libc.sched_getcpu()  # idle a moment ago, since we are awake on it
        child = os.fork()
        if child == 0:
            try:
                nothing = os.open("/dev/null", os.O_RDONLY)
                state_end = os.dup2(state_end, 200)
                for source, target in ((nothing, 0), (output_end, 1), (output_end, 2), (state_end, STATE_FD)):
                    os.dup2(source, target)
                os.closerange(3, STATE_FD)
                os.closerange(STATE_FD + 1, memory.MAX_HANDLES)
                for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
                    signal.signal(number, signal.SIG_DFL)
                os.setsid()
                os.chdir("/work")
                self._limit(timeout_s, core)
                os.execve(self.shell, arguments, self.env)
            except BaseException as error:  # noqa: BLE001  (nothing may return from a forked child)
                os.write(2, f"the command could not be started: {error}\n".encode())
            finally:
                os._exit(126)
        os.close(output_end)
        os.close(state_end)
        return child, output, state

    def _limit(self, timeout_s: float, core: int) -> None:
        """Give up, in the forked child, what a command may not have."""
        for kind, most in (
            (resource.RLIMIT_AS, self.limits["memory_mb"] << 20),
            (resource.RLIMIT_NPROC, self.limits["processes"]),
            (resource.RLIMIT_CPU, int(timeout_s) + 1),
            (resource.RLIMIT_FSIZE, self.limits["disk_mb"] << 20),
            (resource.RLIMIT_NOFILE, memory.MAX_HANDLES),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 64 << 10),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_SIGPENDING, 1024),
        ):
            allowed = resource.getrlimit(kind)[1]
            most = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
            resource.setrlimit(kind, (most, most))
        with contextlib.suppress(OSError):
            os.nice(5)
        if not self.control_group:
            cores = sorted(os.sched_getaffinity(0), key=lambda one: (one - core) % 4096)
            os.sched_setaffinity(0, cores[: math.ceil(self.limits["cpus"])])
        # PR_SET_DUMPABLE: what is started can be looked at and counted. PR_SET_THP_DISABLE: its pages are small.
        prctl(self._libc, 4, 1)
        prctl(self._libc, 41, 1)
        # Where the kernel is sooner than the meter, it picks the command, and not what watches it.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        if self.refused:
            code = ctypes.create_string_buffer(self.refused, len(self.refused))
            filtered = ctypes.create_string_buffer(struct.pack("HP", len(self.refused) // 8, ctypes.addressof(code)))
            prctl(self._libc, 22, 2, ctypes.addressof(filtered))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER

    def _watch(self, child: int, output: int, state: int, deadline: float) -> dict[str, Any]:
        """Collect output until the shell ends, the deadline passes, or a limit that the kernel does not hold is met."""
        collected, kept, stopped, code = Output(self.limits["output_kb"] << 10), bytearray(), "", None
        pipes, files = {output, state}, {path: memory.file_count(path) for path in tree.WRITABLE}
        look = time.monotonic() + self._meter.pause_s(0)
        while code is None:
            ready = select.select([0, self.wake, *pipes], [], [], max(0.0, look - time.monotonic()))[0]
            if 0 in ready:
                os._exit(0)  # nobody sends while a command runs: this is the end of stdin
            for pipe in pipes & set(ready):
                piece = read_some(pipe)
                if piece == b"":
                    pipes.discard(pipe)
                elif piece and pipe == output:
                    collected.add(piece)
                elif piece and len(kept) < STATE_BYTES:
                    kept += piece
            if self.wake in ready:
                read_some(self.wake)
            code = reap(child)
            if code is None and time.monotonic() >= min(look, deadline):
                stopped, pause_s = self._too_much(deadline, files)
                look = time.monotonic() + pause_s
                if stopped:
                    end_all()
                    code = 124 if stopped.startswith("time") else 137
        for pipe in pipes:
            drain(pipe, collected.add if pipe == output else kept.extend)
        if not stopped:
            self._keep(kept)
        return {"output": collected.text(), "code": code, "stopped": stopped}

    def _too_much(self, deadline: float, files: dict[str, int]) -> tuple[str, float]:
        """Return which limit is passed, and in how many seconds to look again. `files` are those before the command,
        so that one that removes some may go on."""
        if time.monotonic() >= deadline:
            return "time", 0.0
        for path in tree.WRITABLE:
            if memory.file_count(path) > max(self.limits["files"], files[path]):
                return f"more than {self.limits['files']} files in {path}", 0.0
        used = self._meter.used()
        if used > self._meter.limit:
            return f"memory: more than {self.limits['memory_mb']} MB", 0.0
        return "", min(self._meter.pause_s(used), max(0.0, deadline - time.monotonic()))

    def _keep(self, kept: bytearray) -> None:
        """Remember the shell's folder, variables and functions for the next command."""
        if len(kept) >= STATE_BYTES:
            return
        folder, _, rest = kept.decode(errors="replace").partition("\n")
        if not folder.startswith("/") or "\0" in folder or rest.count("\0") != 1:
            return  # the command replaced the shell, or wrote here itself: all stays as it was
        variables, _, functions = rest.partition("\0")
        kept_ones = [line for line in f"\n{variables.rstrip()}".split("\ndeclare ")[1:] if not own(line)]
        self.folder, self.state = folder, "\n".join([*(f"declare {line}" for line in kept_ones), functions])


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


def prctl(libc: Any, option: int, value: int, more: int | None = None) -> None:
    if libc.prctl(option, ctypes.c_ulong(value), ctypes.c_void_p(more), 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def read_some(pipe: int) -> bytes | None:
    """Return what is in the pipe; None when that is nothing yet, b"" when nobody can write to it."""
    try:
        return os.read(pipe, 65536)
    except BlockingIOError:
        return None


def drain(pipe: int, take: Any) -> None:
    """Take what is in the pipe already; whoever still holds its other end is not waited for."""
    for _ in range(64):
        piece = read_some(pipe)
        if not piece:
            return
        take(piece)


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
