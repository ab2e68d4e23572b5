"""Files of a sandbox as one archive, and back."""

from __future__ import annotations

import contextlib
import io
import os
import stat

from agentgym_environments.backends.sandbox.supervisor import tree

ROOTS = ("/work", "/tmp")
MAX_ARCHIVE_BYTES = 32 << 20
"""Length of an archive, compressed."""


class Refused(Exception):
    """Raised where files of the agent cannot be read or kept; the sentence says why."""


class Bounded(io.BytesIO):
    def write(self, piece) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.tell() + len(piece) > MAX_ARCHIVE_BYTES:
            raise Refused(f"the files of /work and /tmp are more than {MAX_ARCHIVE_BYTES >> 20} MB, compressed")
        return super().write(piece)


def pack(most_files: int, most_bytes: int) -> bytes:
    """All of /work and /tmp. Raises Refused where that is too much, or nested too deep."""
    import tarfile

    buffer, inodes, total = Bounded(), {}, 0
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for root in ROOTS:
            walk = tree.Walk(root, most_files)
            for entry in walk:
                member = tarfile.TarInfo(f"{root[1:]}/{entry.path}")
                member.mode, member.mtime = stat.S_IMODE(entry.stat.st_mode), entry.stat.st_mtime_ns // 10**9
                inode = entry.stat.st_dev, entry.stat.st_ino
                if inode in inodes:
                    member.type, member.linkname = tarfile.LNKTYPE, inodes[inode]
                elif stat.S_ISDIR(entry.stat.st_mode):
                    member.type = tarfile.DIRTYPE
                elif stat.S_ISLNK(entry.stat.st_mode):
                    member.type, member.linkname = tarfile.SYMTYPE, os.readlink(entry.name, dir_fd=entry.folder)
                elif stat.S_ISFIFO(entry.stat.st_mode):
                    member.type = tarfile.FIFOTYPE
                elif stat.S_ISREG(entry.stat.st_mode):
                    inodes[inode], member.size = member.name, entry.stat.st_size
                    total += member.size
                    if total > most_bytes:
                        raise Refused(f"the files of /work and /tmp are more than {most_bytes >> 20} MB, holes counted")
                    with (
                        tree.opened(entry.folder, entry.name, entry.stat, os.O_RDONLY | tree.FILE) as handle,
                        open(handle, "rb", closefd=False) as file,
                    ):
                        archive.addfile(member, file)
                    continue
                else:
                    continue  # a socket without a process
                archive.addfile(member)
            if walk.left_out:
                raise Refused(walk.left_out[0])
    return buffer.getvalue()


def unpack(packed: bytes) -> None:
    """Become what `pack` saw. What was there is removed."""
    import tarfile

    for root in tree.WRITABLE:
        tree.empty(root)
    folders = []
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            path = f"/{member.name}"
            with tree.folder_of(path) as (folder, name):
                if member.isdir():
                    os.mkdir(name, 0o700, dir_fd=folder)
                    folders.append((path, member))
                elif member.issym():
                    os.symlink(member.linkname, name, dir_fd=folder)
                elif member.islnk():
                    with tree.folder_of(f"/{member.linkname}") as (source, first):
                        os.link(first, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
                elif member.isfifo():
                    os.mkfifo(name, member.mode, dir_fd=folder)
                else:
                    file = archive.extractfile(member)
                    assert file is not None
                    _write(folder, name, file)
                    _set(folder, name, member)
    for path, member in reversed(folders):  # inner ones first: an outer one may lock them
        with tree.folder_of(path) as (folder, name), contextlib.suppress(OSError):
            _set(folder, name, member)


def _write(folder: int, name: str, file) -> None:
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | tree.FILE, 0o600, dir_fd=folder)
    with open(handle, "wb") as target:
        while piece := file.read(1 << 20):
            target.write(piece)


def _set(folder: int, name: str, member) -> None:
    os.chmod(name, member.mode, dir_fd=folder)
    os.utime(name, (member.mtime, member.mtime), dir_fd=folder, follow_symlinks=False)
