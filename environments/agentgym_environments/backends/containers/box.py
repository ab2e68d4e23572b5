"""ContainerBox: the container in which an agent works, as `ShellEnv` uses it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import posixpath
import secrets
from pathlib import Path

from agentgym.errors import BadRequest
from agentgym_environments.backends.containers.changes import Change, ChangeArchive
from agentgym_environments.backends.containers.container import Executed, TaskContainer, TaskLimits
from agentgym_environments.backends.containers.engine import ContainerLost, DockerEngine
from agentgym_environments.backends.containers.images import TaskImage
from agentgym_environments.backends.containers.streams import Attached
from agentgym_environments.backends.sandbox.box import Ran, WorkRefused

MAX_COMMAND_BYTES = 100_000
"""The kernel takes 128 KB of one argument."""
MAX_FILE_BYTES = 16 << 20
MAX_SNAPSHOT_BYTES = 64 << 20
SOLUTION = "/solution"
MARK = "AGENTGYM_COMMAND"
"""Variable by which the processes of a command are known."""

RUN = """exec 9>&1 2>&1 </dev/null
cd -- "$2" 2>/dev/null || cd /
trap 'printf "%s %d %s\\0" NONCE "$?" "$PWD" >&9' EXIT
agentgym_command=$1; set --
eval "$agentgym_command"
"""
"""The command's two streams are one, at the end of which come exit code and folder: streams overtake each other."""

END = """for round in 1 2 3; do for place in /proc/[0-9]*; do
  while IFS= read -r -d '' line; do
    [ "$line" = "MARK=$1" ] && kill -9 "${place#/proc/}"
  done 2>/dev/null <"$place/environ"
done; done"""
"""Ends the processes of a command, and stays itself: its own variables are others."""

READ = '[ -f "$1" ] && [ -r "$1" ] && [ "$(stat -Lc %s -- "$1")" -le "$2" ] && exec cat -- "$1"; exit 1'
WRITE = 'mkdir -p -- "$(dirname -- "$1")" && exec head -c "$2" >"$1"'


class ContainerBox:
    """An agent's container. Folder of the next command: where the last one ended, at first `workdir`.

    What a command leaves running stays, a server for one; a command whose time is over is killed with all that it has
    started, and where that does not end it, every process of the container is.
    """

    def __init__(
        self,
        engine: DockerEngine,
        image: TaskImage,
        *,
        limits: TaskLimits,
        env: dict[str, str],
        workdir: str,
        user: str = "",
        output_kb: int = 16,
    ) -> None:
        self.engine, self.image, self.limits = engine, image, limits
        self.env, self.workdir, self.user, self.output_kb = env, workdir, user, output_kb
        self.folder = workdir
        self.history = ""
        """A hash of all commands and edits so far."""
        self.container = self._open()

    def run(self, command: str, timeout_s: float = 30.0) -> Ran:
        if len(command.encode()) > MAX_COMMAND_BYTES:
            return Ran("the command could not be started: it is too long", 126, "")
        self._note("run", command)
        nonce = secrets.token_hex(8)
        argv = ["bash", "-c", RUN.replace("NONCE", nonce), "bash", command, self.folder]
        ending = f"{nonce} ".encode()

        def over(attached: Attached) -> bool:
            return attached.output.ends(b"\0") and attached.output.after(ending) is not None

        try:
            done = self.container.execute(
                argv,
                timeout_s=timeout_s,
                user=self.user,
                env={MARK: nonce},
                most=self.output_kb << 10,
                over=over,
            )
        except ContainerLost as error:
            if self.container.state() != "running":
                raise
            self.container.restart()  # no process can be started any more: the agent's have taken all there may be
            return Ran(f"the command could not be started ({error}); every process was ended", 126, "")
        end = done.attached.output.after(ending, cut=True)
        output = done.attached.output.text()
        if not done.in_time:
            self._end(nonce)
            return Ran(output, 124, f"time limit of {timeout_s:g} s")
        return Ran(output, self._finish(end, done.code), "")

    def read(self, path: str) -> bytes | None:
        place = self._place(path)
        if place is None:
            return None
        most = 2 * MAX_FILE_BYTES
        done = self._as_agent(["bash", "-c", READ, "bash", place, str(MAX_FILE_BYTES)], most=most)
        try:
            return done.attached.output.content() if done.code == 0 else None
        except ValueError:  # it has grown meanwhile
            return None

    def write(self, path: str, content: bytes) -> str:
        place = self._place(path)
        if place is None:
            return "No such file or directory"
        if len(content) > MAX_FILE_BYTES:
            return "File too large"
        self._note("write", place, hashlib.sha256(content).hexdigest())
        done = self._as_agent(["bash", "-c", WRITE, "bash", place, str(len(content))], stdin=content)
        if done.code == 0:
            return ""
        return done.attached.errors.text().strip() or "it could not be written"

    def digest(self) -> str:
        """Return a hash of the commands and edits so far: what they have done is not looked at."""
        return hashlib.sha256(self.history.encode()).hexdigest()

    def snapshot(self) -> bytes:
        """Return the files that have changed and the folder. Processes are not kept. Raises WorkRefused where the files
        are more than 64 MB."""

        def keep(path: str, change: Change, head: object) -> bool:
            return path != SOLUTION and not path.startswith(f"{SOLUTION}/")

        archive = ChangeArchive()
        try:
            with self.container.paused():
                archive.collect(self.container, keep, MAX_SNAPSHOT_BYTES)
            files = base64.b64encode(gzip.compress(archive.finished().read(), 1, mtime=0)).decode()
            state = {"folder": self.folder, "history": self.history, "removed": archive.removed, "files": files}
            return json.dumps(state).encode()
        finally:
            archive.close()

    def restore(self, state: bytes) -> None:
        """Become what `snapshot` saw, in a new container. Raises BadRequest for what is no snapshot."""
        try:
            packed = json.loads(state)
            content = gzip.decompress(base64.b64decode(packed["files"]))
            removed = [str(path) for path in packed["removed"]]
            folder, history = str(packed["folder"]), str(packed["history"])
        except (ValueError, KeyError, TypeError, OSError, EOFError) as error:
            raise BadRequest(f"not a snapshot of a container: {error}") from error
        self.container.remove()
        self.container = self._open()
        archive = ChangeArchive()
        try:
            archive.removed = removed
            archive.finished().write(content)
            archive.apply(self.container)
        finally:
            archive.close()
        self.folder, self.history = folder, history

    def put_solution(self, folder: Path) -> None:
        """Lay a folder of this machine at /solution."""
        archive = ChangeArchive()
        try:
            archive.add_folder(folder, SOLUTION)
            archive.apply(self.container)
        finally:
            archive.close()

    def remove_solution(self) -> None:
        self.container.execute(["rm", "-rf", SOLUTION], user="0")

    def close(self) -> None:
        self.container.remove()

    def _open(self) -> TaskContainer:
        return TaskContainer(self.engine, self.image, limits=self.limits, env=self.env, workdir=self.workdir)

    def _note(self, *deed: str) -> None:
        self.history = hashlib.sha256(json.dumps([self.history, *deed]).encode()).hexdigest()

    def _place(self, path: str) -> str | None:
        """Return a path from the root, of one that may start at the working folder; None for what can be no path."""
        if "\0" in path or len(path.encode(errors="surrogateescape")) > 4000:
            return None
        return posixpath.normpath(posixpath.join(self.workdir, path))

    def _as_agent(self, argv: list[str], *, stdin: bytes | None = None, most: int = 64 << 10) -> Executed:
        """Run a program of ours as the agent's user. Raises WorkRefused where none can be started."""
        try:
            return self.container.execute(argv, user=self.user, stdin=stdin, most=most)
        except ContainerLost as error:
            if self.container.state() != "running":
                raise
            raise WorkRefused(f"nothing can be started in the container ({error})") from error

    def _finish(self, end: bytes | None, code: int | None) -> int:
        """Return the exit code, and go to the folder in which the command ended."""
        number, _, folder = (end or b"").rstrip(b"\0").partition(b" ")
        if not number.isdigit():
            return code or 0  # a command that replaced the shell
        self.folder = folder.decode(errors="surrogateescape") or "/"
        return int(number)

    def _end(self, nonce: str) -> None:
        """End a command's processes; where one is left, or none can be started to end them, all of the container."""
        script = END.replace("MARK", MARK)
        try:
            done = self.container.execute(["bash", "-c", script, "bash", nonce], user=self.user, timeout_s=10.0)
            left = self.container.execute(
                ["bash", "-c", f'grep -lzx "{MARK}=$1" /proc/[0-9]*/environ 2>/dev/null', "bash", nonce],
                user=self.user,
                timeout_s=10.0,
            )
            if done.in_time and left.in_time and left.code and not left.attached.output.length:
                return
        except ContainerLost:
            if self.container.state() != "running":
                raise
        self.container.restart()
