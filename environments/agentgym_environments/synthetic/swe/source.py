"""Packages as PyPI has them: fetched by pip once, checked by their hash, split into what agents see and the tests."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from agentgym.errors import ConfigError, MissingDependency
from agentgym_environments.synthetic.swe.grading.paths import is_code, is_test

TOOLS = (
    "pytest==9.2.0",
    "pluggy==1.7.0",
    "iniconfig==2.3.1",
    "packaging==26.3",
    "pygments==2.21.0",
    "freezegun==1.5.5",
    "python-dateutil==4.0.0",
    "six==1.17.0",
    "whatever==0.7",
)
"""Packages that run the tests, and those that some tests import: a folder of its own, without a package of the
machine."""

LEFT_OUT = re.compile(r"(^|/)(\.|__pycache__/|[^/]*\.egg-info/)|^docs/|\.pyc$")
"""Files of a source distribution that no task needs; compiled code is the code before it was broken."""

LARGEST = 200_000
"""Bytes; a larger file of a package is data that no task needs."""


@dataclass(frozen=True)
class Package:
    """A source distribution. `sha256` is of its archive."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True, eq=False)
class PackageSource:
    """An unpacked package. Paths are relative to the archive's top folder."""

    visible: dict[str, bytes]
    """All but the tests."""
    hidden: dict[str, bytes]
    """The tests, and whatever lies beside them."""
    root: str
    """The folder that Python imports from: "" or "src"."""
    module: str
    """The package's folder with a slash, or its one file: what a fix may change lies here."""

    def is_code(self, path: str) -> bool:
        """Return whether a fix may change the file."""
        return is_code(path, self.module)


def default_cache() -> Path:
    return Path("~/.cache/agentgym").expanduser()


def fetch(package: Package, cache: Path) -> Path:
    """The package's archive in `cache`, downloaded when it is not there.

    Raises ConfigError when PyPI's archive is another than the one meant, MissingDependency when there is no way to it.
    """
    folder = cache / "sdists"
    path = next((path for path in _archives(folder, package.name) if _hash(path) == package.sha256), None)
    if path is not None:
        return path
    with tempfile.TemporaryDirectory() as made:
        found = download(package.name, package.version, Path(made))
        if _hash(found) != package.sha256:
            raise ConfigError(
                f"{found.name} has the SHA-256 {_hash(found)}, not {package.sha256}: its tasks are made from another"
            )
        return _keep(found, folder / found.name)


def download(name: str, version: str, folder: Path) -> Path:
    """The source distribution by pip; `version` "" is the newest. Raises MissingDependency when pip does not get it."""
    wanted = f"{name}=={version}" if version else name
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", name, "--dest", str(folder)]
    done = subprocess.run([sys.executable, "-m", "pip", "download", *options, wanted], capture_output=True, text=True)
    found = _archives(folder, name)
    if done.returncode or not found:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise MissingDependency(
            f"the tasks of {name} need its source distribution, once, from PyPI: "
            f"`pip download --no-deps --no-binary {name} {wanted}` failed ({last}); with a connection, "
            "`python -m agentgym_environments.synthetic.swe.fetch` gets all of them"
        )
    return found[0]


def tools(cache: Path) -> Path:
    """The folder with pytest in it, installed when it is not there. Raises MissingDependency when pip cannot."""
    mark = hashlib.sha256(" ".join(TOOLS).encode()).hexdigest()[:12]
    folder = cache / f"tools-{mark}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as made:
        os.chmod(made, 0o755)
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--compile", "--target", f"{made}/tools"]
        command = [sys.executable, "-m", "pip", "install", *options, *TOOLS]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            raise MissingDependency(f"tests are run by {TOOLS[0]}, once from PyPI, which failed ({last})")
        shutil.rmtree(f"{made}/tools/bin", ignore_errors=True)
        try:
            os.rename(f"{made}/tools", folder)
        except OSError:  # another process was faster
            if not folder.is_dir():
                raise
    return folder


@lru_cache(maxsize=64)
def unpack(package: Package, cache: Path) -> PackageSource:
    """The package's text files. Raises ConfigError when it has no tests, or no module of the package's name."""
    visible: dict[str, bytes] = {}
    hidden: dict[str, bytes] = {}
    with tarfile.open(fetch(package, cache)) as archive:
        for member in archive:
            path = member.name.partition("/")[2]
            if not member.isfile() or not path or LEFT_OUT.search(path):
                continue
            file = archive.extractfile(member)
            if file is not None and (is_test(path) or member.size <= LARGEST):
                (hidden if is_test(path) else visible)[path] = file.read()
    name = package.name.replace("-", "_").lower()
    for module in (f"src/{name}/", f"{name}/", f"src/{name}.py", f"{name}.py"):
        if any(path.startswith(module) for path in visible):
            if not any(path.endswith(".py") for path in hidden):
                raise ConfigError(f"the source distribution of {package.name} has no tests")
            return PackageSource(visible, hidden, "src" if module.startswith("src/") else "", module)
    raise ConfigError(f"the source distribution of {package.name} has no module {name}")


def _archives(folder: Path, name: str) -> list[Path]:
    wanted = re.sub(r"[-_.]+", "-", name).lower()
    found = sorted(folder.glob("*.tar.gz")) if folder.is_dir() else []
    return [path for path in found if re.sub(r"[-_.]+", "-", path.name).lower().startswith(f"{wanted}-")]


def _keep(found: Path, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as copy:
        copy.write(found.read_bytes())
    os.replace(copy.name, path)
    return path


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
