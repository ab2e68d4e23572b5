"""Sandbox: start it with files, run commands in it, read and write its files, snapshot it, close it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import tempfile
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from agentgym.errors import BadRequest, EnvironmentCrashed
from agentgym_environments.backends.json_process import JsonProcess
from agentgym_environments.backends.sandbox import backends, filter, program
from agentgym_environments.backends.sandbox.limits import SandboxLimits

START_S = 60.0
GRACE_S = 30.0
"""Seconds that the supervisor may take beyond a command's own time."""
MAX_ANSWER_BYTES = 128 << 20
CLOSED = 0
"""Exit code of a supervisor whose stdin has ended: it was closed, by us."""
DOCKER_FAILED = 125
"""Exit code of `docker run` when its engine failed."""
MAX_COMMAND_BYTES = 1 << 20
"""A longer command is not sent. The kernel itself takes 128 KB."""

ENV = {
    "PATH": "/opt/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "USER": "agent",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "TZ": "UTC",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
}


class SandboxLost(EnvironmentCrashed):
    """The sandbox has ended or does not answer: the machine's fault, not the agent's."""


class SandboxEnded(BadRequest):
    """The sandbox has ended during a command, and nothing but the command can have ended it."""


class WorkRefused(BadRequest):
    """Files that commands have left cannot be read or kept; the message says which and why."""


class Ran(NamedTuple):
    output: str
    """stdout and stderr together; the middle is left out when there is more than `Limits.output_kb`."""
    code: int
    """Exit code; 124 after the time was over, 137 when another limit was met."""
    stopped: str
    """Name of the limit that stopped the command; "" when none did."""


class Sandbox:
    """A session's own /work, /tmp and shell: no network, no other process, nothing of the machine but /usr to read.

        with Sandbox({"a.py": b"print(1)"}) as box:
            box.run("cd /work && x=2")
            box.run("echo $x; python a.py").output    # folder, variables and functions of the shell stay

    files: path below /work -> content. readonly: folder of the machine -> where it can be read inside. env: variables
    beside `ENV`. backend: "bubblewrap", "docker", or "auto": bubblewrap where it works, else Docker. image: Docker's.

    Whatever a command leaves running is killed when the command ends. Raises MissingDependency where neither backend
    works, SandboxLost when the sandbox ended for a reason that is not the agent's, SandboxEnded (in `run` and after it)
    when a command ended it.
    """

    def __init__(
        self,
        files: Mapping[str, bytes] | None = None,
        *,
        limits: SandboxLimits | None = None,
        readonly: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        backend: str = "auto",
        image: str = backends.IMAGE,
    ) -> None:
        self.limits = limits or SandboxLimits()  # pyright: ignore[reportCallIssue]
        self.backend = backends.choose(backend)
        self.name = f"agentgym-{uuid.uuid4().hex[:12]}"
        arguments, environment = program.arguments(), None
        if self.backend == "docker":
            command, uid = backends.docker(self.limits, readonly or {}, arguments, self.name, image), None
        else:
            command, uid = backends.bubblewrap(self.limits, readonly or {}, arguments), backends.user()
            environment = {"PATH": os.defpath}
        log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._process = JsonProcess(command, name="the sandbox", crash=SandboxLost, env=environment, stderr=log)
        self._ended = ""
        control_group = self.backend == "docker"
        opening = {
            "uid": uid,
            "refused": _encode(filter.program(control_group=control_group)),
            "control_group": control_group,
            "limits": self.limits.model_dump(),
            "env": {**ENV, **(env or {})},
            "shell": "/bin/bash",
        }
        try:
            self._process.ask(opening, START_S, MAX_ANSWER_BYTES)
            self._ask("start", files={path: _encode(content) for path, content in (files or {}).items()})
        except BaseException:
            self.close()
            raise

    def run(self, command: str, timeout_s: float = 30.0) -> Ran:
        """Run a command of the shell (bash) in the folder where the last one ended."""
        if len(command) > MAX_COMMAND_BYTES:
            return Ran("the command could not be started: it is too long", 126, "")
        alive, killed = self._process.alive, _out_of_memory_kills()
        try:
            return Ran(**self._ask("run", timeout_s + GRACE_S, command=command, timeout_s=timeout_s))
        except SandboxLost as lost:
            if not alive or self._by_the_machine(killed):
                raise
            self._ended = "the command ended the sandbox"
            raise SandboxEnded(self._ended) from lost

    def read(self, path: str) -> bytes | None:
        """A file's content; None when there is no such regular file of at most 16 MB. A relative path starts at /work;
        a link that leads out of it is not followed."""
        content = self._ask("read", path=path)
        return None if content is None else base64.b64decode(content)

    def write(self, path: str, content: bytes) -> str:
        """Write a file, its folders too. Returns why that was not possible, "" when it was."""
        if len(content) > self.limits.disk_mb << 20:
            return "File too large"
        return self._ask("write", path=path, content=_encode(content))

    def changes(self) -> dict[str, bytes | None]:
        """Files of /work that differ from those at the start: path -> content, None for a file that is gone.

        A link counts as the file of /work that it leads to; pipes, sockets and other links are no files. Raises
        WorkRefused where the files are more than 16 MB together or nested too deep.
        """
        found = self._ask("changes")
        return {path: None if content is None else base64.b64decode(content) for path, content in found.items()}

    def digest(self) -> str:
        """A hash of all files of /work: equal files, equal digest."""
        return self._ask("digest")

    def snapshot(self) -> bytes:
        """/work, /tmp, and the shell's folder, variables and functions. Raises WorkRefused where that is too much."""
        return json.dumps(self._ask("snapshot")).encode()

    def restore(self, state: bytes) -> None:
        """Become what `snapshot` saw, in this sandbox or another of the same files, limits and backend."""
        self._ask("restore", **json.loads(state))

    def close(self) -> None:
        """End every process of the sandbox and free its memory. May be called twice."""
        self._process.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, do: str, wait_s: float = START_S, /, **arguments: Any) -> Any:
        if self._ended:
            raise SandboxEnded(self._ended)
        result = self._process.ask({"do": do, "with": arguments}, wait_s, MAX_ANSWER_BYTES)
        if "refused" in result:
            raise WorkRefused(result["refused"])
        return result["value"]

    def _by_the_machine(self, killed: int) -> bool:
        """Return whether the sandbox has ended for a reason outside it.

        Nothing inside can send a signal to what we started (which would show as a negative code), nor one that ends
        process 1: a kill from outside comes from somebody on the machine, or from its kernel when memory is short, and
        then its count of such kills has grown.
        """
        code = self._process.code
        if code is None:
            return False  # it did not answer: it is awake long before its time is over, whatever the command does
        if code in (128 + signal.SIGKILL, 128 + signal.SIGTERM):
            return _out_of_memory_kills() == killed
        return code < 0 or code in (CLOSED, DOCKER_FAILED)


def _out_of_memory_kills() -> int:
    """Processes that the kernel has killed for want of memory, on the machine or in a control group."""
    with contextlib.suppress(OSError), open("/proc/vmstat") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    return 0


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()
