"""Changes of a container's files since its image: read out as a tar archive, and laid over the image again."""

from __future__ import annotations

import io
import posixpath
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from agentgym_environments.backends.containers.container import TaskContainer
from agentgym_environments.backends.containers.engine import ContainerLost, reaching
from agentgym_environments.backends.sandbox.box import WorkRefused

Change = Literal["changed", "added", "removed"]
KINDS: tuple[Change, ...] = ("changed", "added", "removed")
"""Names of the engine's numbers 0, 1 and 2."""
Keep = Callable[[str, Change, Callable[[], bytes]], bool]
"""keep(path, change, head) -> whether the change counts. head() is the first 64 KB of a file."""

FEW_PLACES = 40
"""Places in the tree that are asked for one by one: each is a question to the engine."""
HEAD_BYTES = 64 << 10
MAX_REMOVED_BYTES = 100_000
"""Names in one command that removes files."""


def all_of_it(path: str, change: Change, head: Callable[[], bytes]) -> bool:
    """Keep every change."""
    return True


class ChangeArchive:
    """Changed files as a tar archive in a temporary file, and the paths that are gone. Close it after use."""

    def __init__(self) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        self._tar = tarfile.open(fileobj=self.file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self.removed: list[str] = []
        self.size = 0

    def collect(self, container: TaskContainer, keep: Keep, most_bytes: int) -> None:
        """Add what has changed in a container. Raises WorkRefused where that is more than `most_bytes`."""
        changes: dict[str, Change] = {one["Path"]: KINDS[one["Kind"]] for one in _diff(container)}
        for path, change in changes.items():
            if change == "removed" and keep(path, change, bytes):
                self.removed.append(path)
        present = sorted(path for path, change in changes.items() if change != "removed" and keep(path, change, bytes))
        # What was added comes with its folder. Of a few places each is asked for, of many what they have in common.
        places = [path for path in present if changes.get(posixpath.dirname(path)) != "added"]
        alone = len(places) <= FEW_PLACES
        for path in places if alone else _common(places):
            self._fetch(container, path, ChangeFilter(changes, keep, most_bytes, folder_alone=alone))

    def add_folder(self, folder: Path, inside: str) -> None:
        """Add a folder of this machine as `inside`, owned by root."""

        def roots(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            return member

        self._tar.add(folder, inside.strip("/"), filter=roots)

    def apply(self, container: TaskContainer) -> None:
        """Lay the changes over the files of a container that is as its image was."""
        for paths in _batches(self.removed):
            done = container.execute(["rm", "-rf", "--", *paths], user="0")
            if done.code:
                raise ContainerLost(f"files cannot be removed: {done.attached.output.text()}")
        container.put(self.finished())

    def finished(self) -> IO[bytes]:
        """Return the archive from its beginning; nothing can be added afterwards."""
        self._tar.close()
        self.file.seek(0)
        return self.file

    def close(self) -> None:
        self._tar.close()
        self.file.close()

    def _fetch(self, container: TaskContainer, path: str, wanted: ChangeFilter) -> None:
        import docker.errors

        with reaching(f"{path} cannot be read from the container"):
            try:
                stream, _ = container.api.get_archive(container.id, path)
            except docker.errors.NotFound as error:
                if "No such container" in str(error):
                    raise
                return  # its name is no text, or it is a mount's
            try:
                with tarfile.open(fileobj=_Reader(stream), mode="r|") as found:  # type: ignore[call-overload]
                    self._copy(found, posixpath.dirname(path), wanted)
            except tarfile.TarError as error:
                raise ContainerLost(f"{path} comes out of the container as no archive: {error}") from error
            finally:
                stream.close()

    def _copy(self, found: tarfile.TarFile, above: str, wanted: ChangeFilter) -> None:
        left_out = ""
        for number, member in enumerate(found):
            inside = posixpath.normpath(posixpath.join(above, member.name))
            change = wanted.change(inside)
            if change is None or (left_out and inside.startswith(left_out)):
                continue
            self.size += member.size + 512
            if self.size > wanted.most_bytes:
                raise WorkRefused(f"the files that have changed are more than {wanted.most_bytes >> 20} MB")
            content = found.extractfile(member) if member.isreg() else None
            head = content.read(HEAD_BYTES) if content is not None else b""
            if not wanted.keep(inside, change, lambda head=head: head):
                left_out = f"{inside}/" if change == "added" else left_out
                continue
            if member.islnk():
                member.linkname = posixpath.normpath(posixpath.join(above, member.linkname)).lstrip("/")
            member.name = inside.lstrip("/")
            self._tar.addfile(member, _Joined(head, content) if content is not None else None)  # type: ignore[arg-type]
            if number == 0 and member.isdir() and change == "changed" and wanted.folder_alone:
                return  # what lies in it is asked for itself


class ChangeFilter(NamedTuple):
    """The changes that count among what a part of the tree holds."""

    changes: Mapping[str, Change]
    keep: Keep
    most_bytes: int
    folder_alone: bool

    def change(self, path: str) -> Change | None:
        """Return what has become of a path; a name that the engine could not list is its folder's."""
        found = self.changes.get(path)
        if found is None and self.changes.get(posixpath.dirname(path)) == "added":
            return "added"
        return None if found == "removed" else found


def _common(places: list[str]) -> list[str]:
    """Return for each folder at the root what its places have in common."""
    tops: dict[str, list[str]] = {}
    for path in places:
        tops.setdefault(path.split("/")[1], []).append(path)
    return [posixpath.commonpath(paths) for paths in tops.values()]


def _diff(container: TaskContainer) -> list[dict[str, Any]]:
    with reaching("the changes of the container cannot be listed"):
        return container.api.diff(container.id) or []


def _batches(paths: list[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for path in paths:
        if batch and size + len(path) > MAX_REMOVED_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += len(path.encode(errors="surrogateescape")) + 1
    if batch:
        yield batch


class _Reader(io.RawIOBase):
    """The pieces of an answer as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = iter(pieces), b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while len(self._rest) < size:
            piece = next(self._pieces, b"")
            if not piece:
                break
            self._rest += piece
        result, self._rest = self._rest[:size], self._rest[size:]
        return result


class _Joined:
    """A file whose beginning was read already."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int) -> bytes:
        if not self._head:
            return self._rest.read(size)
        piece, self._head = self._head[:size], self._head[size:]
        return piece + (self._rest.read(size - len(piece)) if len(piece) < size else b"")
