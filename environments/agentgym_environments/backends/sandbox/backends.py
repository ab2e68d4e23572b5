"""The two ways to make a sandbox: each is a command that runs `supervisor/` as the sandbox's process 1."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from agentgym.errors import ConfigError, MissingDependency
from agentgym_environments.backends.sandbox.limits import SHARED_MB, SandboxLimits

Backend = Literal["auto", "bubblewrap", "docker"]

IMAGE = "python:3.11-slim-bookworm"
"""Image of Docker sandboxes, unless another one with Python 3.11 or later and bash is given."""

OTHER_PACKAGES = (
    "/usr/lib/python3/dist-packages",
    "/usr/share/python-wheels",
    "/usr/local/lib/python3.11/dist-packages",
)
"""Folders of the machine's packages, which a sandbox has no business to see: a task's solution may be among them."""

NO_DOCKER = "no Docker engine answers: apt-get install docker.io, and start it"


def choose(backend: str) -> Literal["bubblewrap", "docker"]:
    """Bubblewrap unless Docker is asked for; "auto" falls back to Docker. Raises MissingDependency with what to do."""
    if backend not in ("auto", "bubblewrap", "docker"):
        raise ConfigError(f"sandbox is auto, bubblewrap or docker, not {backend!r}")
    if backend != "docker":
        problem = bubblewrap_problem()
        if not problem:
            return "bubblewrap"
        if backend == "bubblewrap" or not docker_answers():
            raise MissingDependency(problem)
    elif not docker_answers():
        raise MissingDependency(NO_DOCKER)
    return "docker"


@cache
def bubblewrap_problem() -> str:
    """Return why bubblewrap cannot make a sandbox here; "" when it can. Found by trying, once a process."""
    program = shutil.which("bwrap")
    if program is None:
        return "a sandbox needs bubblewrap: apt-get install bubblewrap"
    tried = [program, *_namespaces(), "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    try:
        done = subprocess.run(tried, capture_output=True, text=True)
    except OSError as error:
        return f"{program} cannot be started ({error.strerror}): apt-get install bubblewrap"
    if done.returncode == 0:
        return ""
    return (
        f"bubblewrap may not make namespaces here ({done.stderr.strip()}): allow unprivileged user namespaces, or in a "
        "container run it with --security-opt seccomp=FILE --security-opt systempaths=unconfined, with the "
        "seccomp.json of the environment swe"
    )


def docker_answers() -> bool:
    return shutil.which("docker") is not None and not subprocess.run(["docker", "info"], capture_output=True).returncode


def user() -> int | None:
    """The uid of a new sandbox: one that nobody else has when we are root, since the kernel counts processes by uid
    and holds no limit against root; None, that is our own in a user namespace of its own, when we are not."""
    return 0x40000000 | secrets.randbits(29) if os.geteuid() == 0 else None


def _namespaces() -> list[str]:
    if os.geteuid() == 0:
        alone = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        return [*alone, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return [
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--cap-drop",
        "ALL",
    ]


def bubblewrap(limits: SandboxLimits, readonly: Mapping[str, str], program: list[str]) -> list[str]:
    """The command of a sandbox: an empty root, /usr, this Python, and three folders in memory to write to."""
    command = [_found("bwrap"), *_namespaces(), "--new-session", "--as-pid-1", "--clearenv", "--hostname", "sandbox"]
    for folder in _parents(["/etc/x", "/opt/bin/x", sys.base_prefix, *readonly.values()]):
        command += ["--perms", "0755", "--dir", folder]  # bubblewrap makes missing ones for its own user alone
    command += ["--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]
    command += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        link = Path("/", name)
        if link.is_symlink():
            command += ["--symlink", os.readlink(link), str(link)]
        elif link.is_dir():
            command += ["--ro-bind", str(link), str(link)]
    if not sys.base_prefix.startswith("/usr"):
        command += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    command += ["--symlink", python(), "/opt/bin/python", "--symlink", python(), "/opt/bin/python3"]
    for hidden in hidden_folders():
        command += ["--tmpfs", hidden, "--remount-ro", hidden]
    for outside, inside in readonly.items():
        command += ["--ro-bind", outside, inside]
    # /dev/full reads as /dev/zero does, but cannot be mapped: shared memory that no process need hold on to.
    command += ["--proc", "/proc", "--dev", "/dev", "--dev-bind", "/dev/full", "/dev/zero"]
    for folder, megabytes in {"/work": limits.disk_mb, "/tmp": limits.disk_mb, "/dev/shm": SHARED_MB}.items():
        command += ["--perms", "0777", "--size", str(megabytes << 20), "--tmpfs", folder]
    return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/work", "--", python(), *program]


def _found(program: str) -> str:
    """The program's path here: what starts it has another PATH."""
    path = shutil.which(program)
    if path is None:
        raise MissingDependency(f"{program} is no longer in PATH")
    return path


def _parents(paths: list[str]) -> list[str]:
    """Every folder above the paths that is not below /usr, outermost first."""
    found = {str(parent) for path in paths for parent in Path(path).parents}
    return sorted(folder for folder in found if folder not in ("/", "/usr") and not folder.startswith("/usr/"))


def python() -> str:
    """The interpreter under this one's virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


@cache
def hidden_folders() -> tuple[str, ...]:
    lib = Path(sys.base_prefix, "lib", f"python{sys.version_info.major}.{sys.version_info.minor}")
    others = [
        *map(Path, OTHER_PACKAGES),
        *(lib / name for name in ("site-packages", "dist-packages", "ensurepip/_bundled")),
    ]
    return tuple(sorted({str(path) for path in others if path.is_dir()}))


def docker(limits: SandboxLimits, readonly: Mapping[str, str], program: list[str], name: str, image: str) -> list[str]:
    """The command of a container that ends when its stdin does."""
    memory = f"{limits.host_mb}m"
    owner = 10_000 + secrets.randbelow(50_000)  # the kernel counts processes by uid; engines may map 65,536 of them
    command = [_found("docker"), "run", "--rm", "--interactive", "--name", name, "--label", "agentgym.sandbox"]
    command += [
        "--network",
        "none",
        "--read-only",
        "--user",
        f"{owner}:{owner}",
        "--cap-drop",
        "ALL",
        "--hostname",
        "sandbox",
    ]
    command += ["--security-opt", "no-new-privileges", "--pids-limit", str(limits.processes + 8), "--ipc", "private"]
    command += ["--memory", memory, "--memory-swap", memory, "--cpus", str(limits.cpus), "--shm-size", f"{SHARED_MB}m"]
    room = f"size={limits.disk_mb}m,nr_inodes={limits.files}"
    for folder in ("/work", "/tmp"):
        command += ["--tmpfs", f"{folder}:rw,exec,nosuid,nodev,{room},mode=1777,uid={owner},gid={owner}"]
    for folder in (
        *OTHER_PACKAGES,
        "/usr/local/lib/python3.11/site-packages",
        "/usr/local/lib/python3.11/ensurepip/_bundled",
    ):
        command += ["--tmpfs", f"{folder}:ro,size=4k"]
    for outside, inside in readonly.items():
        command += ["--volume", f"{outside}:{inside}:ro"]
    return [*command, "--workdir", "/work", "--entrypoint", "python3", image, *program]
