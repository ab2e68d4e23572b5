"""The Docker engine: reach it, name what is ours on it, and remove what processes that are gone have left."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentgym.errors import EnvironmentCrashed, MissingDependency
from agentgym_environments.backends.sandbox.backends import NO_DOCKER
from agentgym_environments.base.engine_env import package

OWNER = "agentgym.task-container"
"""Label of our containers: machine, process and start of the process that made it."""
ANSWER_S = 120
"""Seconds that the engine may take to answer."""
ABANDONED_S = 24 * 3600
"""Age at which a container of another machine, whose processes cannot be looked up from here, is removed."""


class ContainerLost(EnvironmentCrashed):
    """The container or its engine is gone, or does not do what it must: the machine's fault, not the agent's."""


class ContainerGone(ContainerLost):
    """The container was killed or removed from outside, or the engine does not answer: nothing inside can do that."""


class DockerEngine:
    """A connection to the engine that DOCKER_HOST names. Making one removes the containers of processes that are gone.

    Raises MissingDependency where the package or the engine is missing.
    """

    def __init__(self) -> None:
        docker = package("docker", "docker")
        try:
            _knock()
            self.client: Any = docker.from_env(timeout=ANSWER_S)
            self._facts: dict[str, Any] = self.client.info()
        except (OSError, docker.errors.DockerException) as error:  # requests' errors are OSErrors
            raise MissingDependency(f"{NO_DOCKER} ({error})") from error
        self.sized = True
        """False once it has refused to limit the size of a container's files."""
        self.programs: dict[str, frozenset[str]] = {}
        """Names of the programs in the PATH of each image, by the image's id."""
        with reaching("the Docker engine"):
            self.sweep()

    @property
    def cores(self) -> int:
        return int(self._facts["NCPU"])

    def sweep(self) -> int:
        """Remove the containers that nobody uses any more; the number removed."""
        ours = self.client.api.containers(all=True, filters={"label": OWNER})
        left = [one for one in ours if _abandoned(one["Labels"][OWNER], time.time() - one["Created"])]
        for one in left:
            remove(self.client, one["Id"])
        return len(left)

    def close(self) -> None:
        self.client.close()


@contextlib.contextmanager
def reaching(what: str) -> Iterator[None]:
    """Raise ContainerLost where the engine refuses, ContainerGone where it does not answer or has no such container."""
    import docker.errors

    try:
        yield
    except docker.errors.NotFound as error:
        raise ContainerGone(f"{what}: {error.explanation or error}") from error
    except docker.errors.APIError as error:
        raise ContainerLost(f"{what}: {error.explanation or error}") from error
    except (docker.errors.DockerException, OSError) as error:
        raise ContainerGone(f"{what}: the Docker engine does not answer ({error})") from error


def remove(client: Any, container: str) -> None:
    """Remove a container with all it holds; one that is gone already is no error."""
    import docker.errors

    try:
        client.api.remove_container(container, force=True, v=True)
    except docker.errors.NotFound:
        return
    except docker.errors.APIError as error:
        if "already in progress" not in str(error):
            raise


def owner() -> str:
    """Return the label's value for this process."""
    return f"{_machine()}/{os.getpid()}/{_started(os.getpid())}"


def _abandoned(label: str, age_s: float) -> bool:
    machine, _, process = label.partition("/")
    pid, _, started = process.partition("/")
    if machine != _machine() or not pid.isdigit():
        return age_s > ABANDONED_S
    return _started(int(pid)) != started


def _machine() -> str:
    """Return what process numbers are of: this boot of the machine, and this name space of processes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"


def _started(pid: int) -> str:
    """Return when a process started, in ticks of the kernel; "" for one that is gone or only waits to be reaped."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = status.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def _knock() -> None:
    """Raise OSError where nobody listens at the engine's Unix socket: the docker package leaves its own open then."""
    import docker.constants
    import docker.utils

    address = docker.utils.kwargs_from_env().get("base_url") or docker.constants.DEFAULT_UNIX_SOCKET
    kind, _, path = str(docker.utils.parse_host(address)).partition("://")
    if kind == "http+unix":
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
            knock.connect(path)
