"""A container: limited, labelled, kept alive by a process 1 that nothing inside can end by a signal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from agentgym_environments.backends.containers.engine import (
    OWNER,
    ContainerGone,
    ContainerLost,
    DockerEngine,
    owner,
    reaching,
    remove,
)
from agentgym_environments.backends.containers.images import TaskImage
from agentgym_environments.backends.containers.streams import Attached
from agentgym_environments.backends.sandbox.box import SandboxEnded

IDLE = "trap '' HUP INT QUIT TERM USR1 USR2 ALRM PIPE; while read -r _; do :; done"
"""Process 1 waits for ever on a stdin that nobody closes. The kernel keeps SIGKILL and SIGSTOP from inside away."""
CAPABILITIES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETUID",
    "SYS_CHROOT",
)
"""Kept of Docker's: what package managers, servers and `su` need. Gone are raw sockets, device nodes and the rest."""
PROCESSES = 1024
KILLED = 137
"""Exit code of a process 1 that got SIGKILL, which comes from outside alone."""
START_S = 60.0
SETTLE_S = 3.0
"""Seconds in which the engine notices that a process has ended."""


@dataclass(frozen=True)
class TaskLimits:
    cpus: float = 1.0
    memory_mb: int = 2048
    storage_mb: int = 10240
    network: bool = False
    privileges: bool = False
    """A program with the set-user-ID bit, sudo for one, gets its owner's rights."""


class Executed(NamedTuple):
    code: int | None
    """Exit code; None where the time was over first, or where nobody knows."""
    attached: Attached
    in_time: bool


class TaskContainer:
    """A running container of an image. Raises ContainerLost where the engine refuses, ContainerGone where the container
    was ended from outside or the engine does not answer, and SandboxEnded where something inside has ended it."""

    def __init__(
        self, engine: DockerEngine, image: TaskImage, *, limits: TaskLimits, env: Mapping[str, str], workdir: str
    ) -> None:
        self.engine, self.image, self.limits = engine, image, limits
        self.api: Any = engine.client.api
        self.id = ""
        try:
            with reaching("the container cannot be made"):
                self.id = self._create(dict(env), workdir)
                self.api.start(self.id)
                self._settle()
        except BaseException:
            self.remove()
            raise

    def _create(self, env: dict[str, str], workdir: str) -> str:
        import docker.errors
        import docker.types

        limits, megabytes = self.limits, self.limits.storage_mb
        options: dict[str, Any] = {
            "mem_limit": f"{limits.memory_mb}m",
            "memswap_limit": f"{limits.memory_mb}m",
            "nano_cpus": int(1e9 * min(limits.cpus, self.engine.cores)),
            "pids_limit": PROCESSES,
            "cap_drop": ["ALL"],
            "cap_add": list(CAPABILITIES),
            "security_opt": [] if limits.privileges else ["no-new-privileges"],
            "ipc_mode": "private",
            "network_mode": "bridge" if limits.network else "none",
            "log_config": docker.types.LogConfig(type="none"),
            "ulimits": [docker.types.Ulimit(name="fsize", soft=megabytes << 20, hard=megabytes << 20)],
        }
        fields: dict[str, Any] = {
            "command": ["bash", "-c", IDLE],
            "environment": env,
            "working_dir": workdir,
            "labels": {OWNER: owner()},
            "stdin_open": True,
        }
        if self.engine.sized:
            sized = self.api.create_host_config(**options, storage_opt={"size": f"{megabytes}m"})
            try:
                return self.api.create_container(self.image.id, host_config=sized, **fields)["Id"]
            except docker.errors.APIError as error:
                if "storage" not in str(error) and "quota" not in str(error):
                    raise
                self.engine.sized = False
        return self.api.create_container(self.image.id, host_config=self.api.create_host_config(**options), **fields)[
            "Id"
        ]

    def _settle(self) -> None:
        """Wait until process 1 runs, which an image's own entry point may delay or prevent."""
        try:
            self.require_running()
        except SandboxEnded as error:
            raise ContainerLost("the container has ended at once: its entry point fails, or it has no bash") from error

    # Processes.

    def execute(
        self,
        command: Sequence[str],
        *,
        timeout_s: float = START_S,
        user: str = "",
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        most: int = 64 << 10,
        over: Callable[[Attached], bool] = lambda _: False,
    ) -> Executed:
        """Run a program, which `over` may declare done by what it writes. What it leaves goes on running."""
        deadline = time.monotonic() + timeout_s
        with self._whose_end(), reaching("a command cannot be run in the container"):
            made = self.api.exec_create(
                self.id, list(command), stdin=stdin is not None, user=user, environment=dict(env or {})
            )["Id"]
            attached = Attached(self.api.exec_start(made, socket=True), most)
            try:
                if stdin is not None:
                    attached.send(stdin, timeout_s)
                in_time = attached.read(deadline, over, lambda: not self.api.exec_inspect(made)["Running"])
            finally:
                attached.close()
            code = self._code(made) if in_time and not over(attached) else None
        if code == KILLED:
            self._wait_for_end()
        self.require_running()
        return Executed(code, attached, in_time)

    def _code(self, made: str) -> int:
        """Return the exit code of a process whose streams have ended, as soon as the engine knows it."""
        end = time.monotonic() + SETTLE_S
        while (facts := self.api.exec_inspect(made))["Running"] and time.monotonic() < end:
            time.sleep(0.05)
        return KILLED if facts["ExitCode"] is None else facts["ExitCode"]

    def _wait_for_end(self) -> None:
        """Wait a moment: who kills a container kills its processes first, and the engine notices one by one."""
        end = time.monotonic() + SETTLE_S
        while self.state() == "running" and time.monotonic() < end:
            time.sleep(0.1)

    def state(self) -> str:
        with reaching("the container cannot be looked at"):
            return self.api.inspect_container(self.id)["State"]["Status"]

    def require_running(self) -> None:
        """Raise ContainerLost or SandboxEnded, by who has ended it, unless the container runs."""
        with reaching("the container is gone"):
            state = self.api.inspect_container(self.id)["State"]
        if state["Status"] == "running":
            return
        if state["ExitCode"] == KILLED and not state["OOMKilled"]:
            raise ContainerGone("the container was killed from outside")
        raise SandboxEnded("the command ended the container")

    def kill(self) -> None:
        """End every process; files stay. Raises as `require_running` does where something else has ended them."""
        import docker.errors

        with reaching("the container cannot be stopped"):
            try:
                self.api.kill(self.id)
            except docker.errors.APIError as error:
                if "not running" not in str(error):
                    raise
                self.require_running()
            self.api.wait(self.id)

    def restart(self) -> None:
        """End every process and go on with the files."""
        self.kill()
        with reaching("the container cannot be started again"):
            self.api.start(self.id)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let no process run meanwhile, where any does."""
        running = self.state() == "running"
        with reaching("the container cannot be paused"):
            if running:
                self.api.pause(self.id)
            try:
                yield
            finally:
                if running:
                    self.api.unpause(self.id)

    # Files.

    def put(self, archive: IO[bytes]) -> None:
        """Unpack a tar archive at /, as root."""
        with self._whose_end(), reaching("files cannot be put into the container"):
            self.api.put_archive(self.id, "/", archive)

    def remove(self) -> None:
        """Remove the container; without an answer of the engine, the next one to use it does."""
        if self.id:
            with contextlib.suppress(ContainerLost), reaching("the container cannot be removed"):
                remove(self.engine.client, self.id)
            self.id = ""

    @contextlib.contextmanager
    def _whose_end(self) -> Iterator[None]:
        """Say whose doing it was where a call failed because the container has ended."""
        try:
            yield
        except ContainerLost:
            self.require_running()
            raise
