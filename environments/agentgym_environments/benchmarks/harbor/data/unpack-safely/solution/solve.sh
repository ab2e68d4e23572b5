#!/bin/bash
set -e
cat > /app/unpack.py <<'PY'
import os
import posixpath
import stat
import sys
import tarfile


def inside(name):
    """The name from the folder on; None where it is absolute or leads out."""
    if name.startswith("/"):
        return None
    path = posixpath.normpath(name)
    return None if path == ".." or path.startswith("../") else path


def through_link(folder, path):
    """Whether the path or a folder above it is a link."""
    while path and path != ".":
        if os.path.islink(os.path.join(folder, path)):
            return True
        path = posixpath.dirname(path)
    return False


def unpack(tar, member, folder, made):
    path = inside(member.name)
    if path is None or through_link(folder, path):
        return False
    target = os.path.join(folder, path)
    if member.isdir():
        os.makedirs(target, 0o755, exist_ok=True)
        return True
    if member.issym():
        if member.linkname.startswith("/") or inside(posixpath.join(posixpath.dirname(path), member.linkname)) is None:
            return False
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(member.linkname, target)
        return True
    if member.islnk():
        other = inside(member.linkname)
        if other not in made:
            return False
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.link(os.path.join(folder, other), target)
        made.add(path)
        return True
    if not member.isreg():
        return False
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(tar.extractfile(member).read())
    os.chmod(target, stat.S_IMODE(member.mode) & 0o755)
    made.add(path)
    return True


os.umask(0o022)
try:
    tar = tarfile.open(sys.argv[1])
except (tarfile.TarError, OSError) as error:
    sys.exit(f"{sys.argv[1]} is no tar archive: {error}")
os.makedirs(sys.argv[2], exist_ok=True)
made = set()
with tar:
    for member in tar:
        if not unpack(tar, member, sys.argv[2], made):
            print(member.name)
PY
