"""Files of a sandbox, by handles of folders: no link is followed, no path is too long, and all that is read is bounded.

No process of the agent's runs while these functions do, so that nothing changes below them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

WRITABLE = ("/work", "/tmp", "/dev/shm")
NOT_FILES = ("/proc", "/sys", "/dev")
"""Folders whose files answer when they are opened: nothing there is read, /dev/shm aside."""
MAX_READ_BYTES = 16 << 20
"""Bytes of a file, and of all files of `changes`, that are read."""
MAX_DEPTH = 64
MAX_PATH_CHARACTERS = 4 << 20
"""Length of all paths together."""
MAX_LINKS = 20
BLOCK = 1 << 16
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class TreeEntry(NamedTuple):
    path: str
    """Path below the folder that is walked."""
    folder: int
    """Handle of the folder that it is in, open until the next entry."""
    name: str
    stat: os.stat_result


class Walk:
    """Entries below a folder, those of a folder in order and before what is in them."""

    def __init__(self, root: str, most: int) -> None:
        self.root, self.most = root, most
        self.left_out: list[str] = []
        """Paths that were not looked at, and why: sentences."""
        self._count = self._characters = 0

    def __iter__(self) -> Iterator[TreeEntry]:
        try:
            handle = os.open(self.root, FOLDER)
        except OSError as error:
            self.leave_out(self.root, os.strerror(error.errno or 0))
            return
        try:
            yield from self._below(handle, "", 1)
        finally:
            os.close(handle)

    def leave_out(self, path: str, why: str) -> None:
        self.left_out.append(f"{shown(path)} ({why})")

    def _below(self, handle: int, prefix: str, depth: int) -> Iterator[TreeEntry]:
        for name in sorted(os.listdir(handle)):
            path = prefix + name
            self._count += 1
            self._characters += len(path)
            if self._count > self.most or self._characters > MAX_PATH_CHARACTERS:
                self.leave_out(path, f"more than {self.most} files, or than {MAX_PATH_CHARACTERS} characters of names")
                return
            found = os.lstat(name, dir_fd=handle)
            yield TreeEntry(path, handle, name, found)
            if stat.S_ISDIR(found.st_mode):
                if depth == MAX_DEPTH:
                    self.leave_out(path, f"folders are nested deeper than {MAX_DEPTH}")
                    continue
                with opened(handle, name, found, FOLDER) as inner:
                    yield from self._below(inner, f"{path}/", depth + 1)


@contextlib.contextmanager
def opened(folder: int, name: str, found: os.stat_result, flags: int) -> Iterator[int]:
    """A handle of what is there, which is made readable for as long when the agent has taken that right away."""
    mode = stat.S_IMODE(found.st_mode)
    locked = mode & 0o500 != 0o500 if stat.S_ISDIR(found.st_mode) else not mode & 0o400
    if locked:
        os.chmod(name, mode | 0o700, dir_fd=folder)
    try:
        handle = os.open(name, flags, dir_fd=folder)
        try:
            yield handle
        finally:
            os.close(handle)
    finally:
        if locked:
            os.chmod(name, mode, dir_fd=folder)


def shown(path: str) -> str:
    """A path as a sentence can hold it."""
    path = path if path.isprintable() else ascii(path)
    return path if len(path) <= 100 else f"{path[:60]}...{path[-30:]}"


def content_hash(handle: int, size: int) -> str:
    """A hash of a file's content. Holes are not read: equal contents have equal hashes, whatever is on the disk."""
    digest, offset = hashlib.sha256(str(size).encode()), 0
    while True:
        try:
            offset = os.lseek(handle, offset, os.SEEK_DATA) // BLOCK * BLOCK
        except OSError:  # no more data
            return digest.hexdigest()
        block = os.pread(handle, BLOCK, offset)
        if block.count(0) != len(block):
            digest.update(str(offset).encode())
            digest.update(block.rstrip(b"\0"))
        offset += BLOCK


def regular_content(handle: int, most: int) -> bytes | None:
    """The content of a regular file; None for anything else and for what is longer."""
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_size > most:
        return None
    with open(handle, "rb", closefd=False) as file:
        return file.read(found.st_size)


def read(path: str) -> bytes | None:
    """The content of the regular file at an absolute or relative path; None when there is none, or it is too long."""
    try:
        path = absolute(path)
    except (OSError, ValueError):
        return None
    if path.startswith(tuple(f"{folder}/" for folder in NOT_FILES)) and not path.startswith("/dev/shm/"):
        return None
    try:
        with folder_of(path) as (folder, name):
            if not stat.S_ISREG(os.lstat(name, dir_fd=folder).st_mode):
                return None
            handle = os.open(name, os.O_RDONLY | FILE, dir_fd=folder)
        try:
            return regular_content(handle, MAX_READ_BYTES)
        finally:
            os.close(handle)
    except (OSError, ValueError):  # a ValueError is of a NUL in the name
        return None


def write(path: str, content: bytes) -> str:
    """Write a file and its folders. Return why it could not be written; "" when it was."""
    try:
        path = absolute(path)
        if not path.startswith(tuple(f"{folder}/" for folder in WRITABLE)):
            return os.strerror(errno.EROFS)
        with folder_of(path, make=True) as (folder, name):
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(os.lstat(name, dir_fd=folder).st_mode):
                    return "it is no regular file"
            handle = os.open(name, os.O_WRONLY | os.O_CREAT | FILE, 0o644, dir_fd=folder)
        with open(handle, "wb") as file:
            os.ftruncate(handle, 0)
            file.write(content)
    except OSError as error:
        return os.strerror(error.errno or 0)
    except ValueError:
        return "no such name can be"
    return ""


def absolute(path: str) -> str:
    """The path from the root, without dots. In /work it has no links either, and none may lead out of /work."""
    path = "/" + os.path.normpath(os.path.join("/work", path)).lstrip("/")
    if not path.startswith("/work/"):
        return path
    pending, found, links = path.split("/")[1:], "", 0
    while pending:
        name = pending.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            found = found.rpartition("/")[0]
            continue
        target = link_target(f"{found}/{name}")
        if target is None:
            found = f"{found}/{name}"
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        found = "" if target.startswith("/") else found
        pending = [*target.split("/"), *pending]
    if not found.startswith("/work/"):
        raise OSError(errno.EXDEV, "a link leads out of /work")
    return found


def link_target(path: str) -> str | None:
    """The target of the link at a path without links before its end; None when there is no link."""
    try:
        with folder_of(path) as (folder, name):
            return os.readlink(name, dir_fd=folder)
    except OSError:
        return None


@contextlib.contextmanager
def folder_of(path: str, make: bool = False) -> Iterator[tuple[int, str]]:
    """A handle of the folder of an absolute path, opened step by step, and the name in it. `make`: missing folders."""
    *folders, name = path.split("/")[1:]
    handle = os.open("/", os.O_PATH | FOLDER)
    try:
        for folder in folders:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, 0o755, dir_fd=handle)
            inner = os.open(folder, os.O_PATH | FOLDER, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle, name
    finally:
        os.close(handle)


def empty(root: str) -> None:
    """Remove all that is in a folder, at any depth and whatever the agent has made of its permissions.

    What is in a folder moves up to `root` before the folder goes, so that nothing is ever two folders deep.
    """
    handle, moved = os.open(root, FOLDER), 0
    try:
        while names := os.listdir(handle):
            for name in names:
                found = os.lstat(name, dir_fd=handle)
                if not stat.S_ISDIR(found.st_mode):
                    os.unlink(name, dir_fd=handle)
                    continue
                os.chmod(name, 0o700, dir_fd=handle)
                inner = os.open(name, FOLDER, dir_fd=handle)
                try:
                    for one in os.listdir(inner):
                        if stat.S_ISDIR(os.lstat(one, dir_fd=inner).st_mode):
                            os.chmod(one, 0o700, dir_fd=inner)
                        moved += 1
                        os.rename(one, f".{os.getpid()}-{moved}-{found.st_ino}", src_dir_fd=inner, dst_dir_fd=handle)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=handle)
    finally:
        os.close(handle)
