"""Help for verifiers of exported Harbor tasks: what an agent made is run as another user, with limits.

It is copied into a task's tests, needs nothing but Python, and is run by root.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

REWARD = Path("/logs/verifier/reward.txt")
MOST_PROCESSES = 256
MOST_FILE_BYTES = 64 << 20


def write_reward(reward: float, message: str) -> None:
    """Write the reward where Harbor reads it, and say why it is what it is."""
    print(message)
    REWARD.write_text(f"{reward:g}\n", encoding="ascii")


def write_files(folder: str, files: Mapping[str, bytes], user: int) -> None:
    """Make a folder anew, with these files, for one user alone. Whatever was there is removed."""
    if os.path.islink(folder) or os.path.isfile(folder):
        os.remove(folder)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for path, content in files.items():
        place = Path(folder, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    for place, _, names in os.walk(folder):
        for path in (place, *(os.path.join(place, name) for name in names)):
            os.chown(path, user, user)
    os.chmod(folder, 0o700)


def run_as(
    user: int, arguments: list[str], folder: str, environment: Mapping[str, str], timeout_s: float
) -> int | None:
    """Run a command in a folder and end every process of that user. Returns its exit code; None where it was stopped.

    What it prints is left out.
    """
    child = subprocess.Popen(
        arguments,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        user=user,
        group=user,
        extra_groups=[],
        preexec_fn=_limit,
    )
    code = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = child.wait(timeout_s)
    end_processes(user)
    child.wait()
    return code


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_NPROC, (MOST_PROCESSES, MOST_PROCESSES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def end_processes(user: int) -> None:
    """Kill every process of a user, those that would start others too."""
    code = "import os\ntry:\n    os.kill(-1, 9)\nexcept ProcessLookupError:\n    pass"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], user=user, group=user, extra_groups=[], check=True)


def regular_files(folder: str, most_files: int) -> Iterator[tuple[str, int]]:
    """Yield path below the folder and size of each regular file, links left out. Raises ValueError for too many."""
    count = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(place, name)
            facts = os.lstat(path)
            if not stat.S_ISREG(facts.st_mode):
                continue
            count += 1
            if count > most_files:
                raise ValueError(f"{folder} has more than {most_files} files")
            yield os.path.relpath(path, folder), facts.st_size


def content(path: str, most_bytes: int) -> bytes | None:
    """Return a regular file's content; None for a link, a pipe, what is too large, or is not there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        return file.read() if stat.S_ISREG(facts.st_mode) and facts.st_size <= most_bytes else None
