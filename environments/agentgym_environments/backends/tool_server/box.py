"""The command of a tool server in a sandbox: an empty root with /usr, this Python and the server's own folders."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from agentgym.errors import ConfigError, MissingDependency
from agentgym_environments.backends.sandbox.backends import bubblewrap_problem, python
from agentgym_environments.backends.tool_server.definition import ServerDefinition

MEMORY_MB = 2048
"""Data of each process of a server."""
DISK_MB = 256
"""Size of /tmp, which is in memory."""
FILE_MB = 256
"""Largest file."""
NETWORK_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl", "/etc/ca-certificates")
PATH = f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin"


def server_command(server: ServerDefinition, *, sandbox: bool, network: bool) -> tuple[list[str], dict[str, str], str]:
    """Return the command, its variables and the folder in which it starts.

    Raises ConfigError for a program that does not exist, MissingDependency where no sandbox can be made.
    """
    program = _found(server)
    folder = server.folders[0] if server.folders else "/tmp"
    home = "/tmp" if sandbox else os.path.expanduser("~")
    variables = {"PATH": PATH, "HOME": home, "LANG": "C.UTF-8", **server.env}
    command = [program, *server.args]
    if not sandbox:
        return command, variables, folder
    if problem := bubblewrap_problem():
        raise MissingDependency(f"{problem}; or pass sandbox=false to run the server without one")
    inside = [*_sandbox(server, program, network), "--chdir", folder, "--", *_limits(), *command]
    return inside, variables, "/"


def _found(server: ServerDefinition) -> str:
    if server.command in ("python", "python3"):
        return sys.executable
    place = server.folders[0] if server.folders else "/"
    path = shutil.which(server.command, path=PATH) or shutil.which(str(Path(place, server.command)))
    if path is None:
        raise ConfigError(f"there is no program {server.command!r} in {PATH}: install it, or name it by its path")
    return path


def _limits() -> list[str]:
    prlimit = shutil.which("prlimit", path=PATH)
    if prlimit is None:
        return []
    return [prlimit, f"--data={MEMORY_MB << 20}", f"--fsize={FILE_MB << 20}", "--core=0"]


def _sandbox(server: ServerDefinition, program: str, network: bool) -> list[str]:
    command = [str(shutil.which("bwrap")), "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "server"]
    if os.geteuid() != 0:
        command += ["--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"]
    if not network:
        command += ["--unshare-net"]
    command += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        link = Path("/", name)
        if link.is_symlink():
            command += ["--symlink", os.readlink(link), str(link)]
        elif link.is_dir():
            command += ["--ro-bind", str(link), str(link)]
    for path in ("/etc/alternatives", "/etc/ld.so.cache", *(NETWORK_FILES if network else ())):
        command += ["--ro-bind-try", path, path]
    command += ["--proc", "/proc", "--dev", "/dev", "--size", str(DISK_MB << 20), "--tmpfs", "/tmp"]
    shown = {sys.base_prefix, sys.prefix, os.path.dirname(os.path.dirname(python()))}
    if not program.startswith(("/usr/", "/bin/", "/sbin/", sys.prefix)):
        shown |= {program, os.path.realpath(program)}  # not its folder, where the tasks may be
    for path in sorted(shown | set(server.folders)):
        if not path.startswith("/usr/") and path != "/usr":
            command += ["--ro-bind", path, path]
    return [*command, "--remount-ro", "/"]
