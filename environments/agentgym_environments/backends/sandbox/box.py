"""Sandbox: start it with files, run commands in it, read and write its files, snapshot it, close it."""

from __future__ import annotations

import base64
import json
import os
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agentgym.errors import EnvironmentCrashed
from agentgym_environments.backends.json_process import JsonProcess
from agentgym_environments.backends.sandbox import backends, filter
from agentgym_environments.backends.sandbox.limits import SandboxLimits

SUPERVISOR = Path(__file__).with_name("supervisor.py")
START_S = 60.0
GRACE_S = 15.0
"""Seconds that the supervisor may take beyond a command's own time."""

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
    works, SandboxLost when the sandbox ended for a reason that is not the agent's.
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
        program = ["-I", "-S", "-c", SUPERVISOR.read_text(encoding="utf-8")]
        if self.backend == "docker":
            command, uid = backends.docker(self.limits, readonly or {}, program, self.name, image), None
        else:
            command, uid = backends.bubblewrap(self.limits, readonly or {}, program), backends.user()
        log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._process = JsonProcess(
            command, name="the sandbox", crash=SandboxLost, env={"PATH": os.defpath}, stderr=log
        )
        opening = {
            "uid": uid,
            "refused": _encode(filter.program()),
            "limits": self.limits.model_dump(),
            "env": {**ENV, **(env or {})},
            "shell": "/bin/bash",
        }
        try:
            self._process.ask(opening, START_S, self._most)
            self._ask("start", files={path: _encode(content) for path, content in (files or {}).items()})
        except BaseException:
            self.close()
            raise

    def run(self, command: str, timeout_s: float = 30.0) -> Ran:
        """Run a command of the shell (bash) in the folder where the last one ended."""
        return Ran(**self._ask("run", timeout_s + GRACE_S, command=command, timeout_s=timeout_s))

    def read(self, path: str) -> bytes | None:
        """A file's content; None when there is no such regular file. A relative path starts at /work."""
        content = self._ask("read", path=path)
        return None if content is None else base64.b64decode(content)

    def write(self, path: str, content: bytes) -> str:
        """Write a file, its folders too. Returns why that was not possible, "" when it was."""
        return self._ask("write", path=path, content=_encode(content))

    def changes(self) -> dict[str, bytes | None]:
        """Files of /work that differ from those at the start: path -> content, None for a file that is gone."""
        found = self._ask("changes")
        return {path: None if content is None else base64.b64decode(content) for path, content in found.items()}

    def digest(self) -> str:
        """A hash of all files of /work: equal files, equal digest."""
        return self._ask("digest")

    def snapshot(self) -> bytes:
        """/work, /tmp, and the shell's folder, variables and functions."""
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
        return self._process.ask({"do": do, "with": arguments}, wait_s, self._most)

    @property
    def _most(self) -> int:
        """Bytes of the longest answer."""
        return 4 * self.limits.disk_mb << 20


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()
