"""ShellBox: what an environment with a shell needs of the place where commands run, a sandbox or a container."""

from __future__ import annotations

from typing import Protocol

from agentgym_environments.backends.sandbox.box import Ran


class ShellBox(Protocol):
    """A place for one episode's commands and files. Its errors are those of `Sandbox`: SandboxEnded where the agent's
    commands ended it, WorkRefused for files that cannot be read or kept, EnvironmentCrashed where it was lost."""

    def run(self, command: str, timeout_s: float = 30.0) -> Ran:
        """Run a command by bash in the folder where the last one ended."""
        ...

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None when there is no such regular file."""
        ...

    def write(self, path: str, content: bytes) -> str:
        """Write a file, its folders too. Returns why that was not possible, "" when it was."""
        ...

    def digest(self) -> str:
        """Return a hash that names the present state."""
        ...

    def snapshot(self) -> bytes:
        """Return the files, and the folder of the next command."""
        ...

    def restore(self, state: bytes) -> None:
        """Become what `snapshot` saw."""
        ...

    def close(self) -> None:
        """End every process and free everything. May be called twice."""
        ...
