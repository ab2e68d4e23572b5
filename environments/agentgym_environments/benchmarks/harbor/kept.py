"""Changes that the grader's container gets of the agent's: work, but nothing that changes how the tests run."""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Callable

from agentgym_environments.backends.containers.changes import Change, Keep

NEVER = re.compile(
    r"/(tests|logs|solution|proc|sys|dev|run|\.dockerenv)(/|$)"
    r"|/etc/(hosts|hostname|resolv\.conf|mtab|nsswitch\.conf|environment|bash\.bashrc|pip\.conf|sudo\.conf)$"
    r"|/etc/(ld\.so[^/]*|profile[^/]*|pam\.d|security|apt|ssl|ca-certificates[^/]*|perl|python3[^/]*|alternatives)(/|$)"
    r"|/(conftest\.py|pytest\.ini|\.pytest\.ini|setup\.cfg|tox\.ini|pyproject\.toml|setup\.py)$"
)
"""Matched at the beginning of a path: the grader's own places, the engine's files, what starts with every program, and
what rules pytest from the root."""

SYSTEM = re.compile(r"/(usr|bin|sbin|lib|lib32|lib64|libx32|boot)(/|$)")
"""Folders of the programs with which tests run: what the image has there stays as it is; more may be added."""

STARTS = re.compile(
    r"/(sitecustomize|usercustomize)(\.[^/]*|/.*)?$|\.pth$|/\._pth$"
    r"|/\.(bashrc|bash_profile|bash_login|bash_logout|profile|zshrc|zshenv|zprofile|inputrc|curlrc|wgetrc|pypirc)$"
    r"|/\.(pip|config/pip|config/uv|config/sitecustomize|pydistutils\.cfg)(/|$)"
    r"|/\.local/lib/python[^/]*(/|$)"
)
"""Files that a shell, Python or an installer reads when it starts, wherever they lie."""

NOT_ADDED = re.compile(
    r"/lib/python[\d.]+(?!/(?:site|dist)-packages)/"  # modules of the standard library
    r"|/lib/python\d+\.zip$|/__pycache__(/|$)|\.pyc$|/glibc-hwcaps(/|$)|/ld\.so[^/]*$"
    r"|/(?:share|lib|local)(?:/[\w.-]+)*/(?:perl5?|site_perl)(/|$)"
)
"""Additions to system folders that come before what the image has."""

LIBRARY = sys.stdlib_module_names - {"test"}
"""Names of Python's own modules."""

RUNNERS = frozenset(
    re.findall(
        r"\S+",
        """apt apt-get bash cat chmod cp curl dash env git grep make node npm npx perl pip pip3 pipx pytest python
        python3 rm sed sh su sudo tee test timeout uv uvx wget""",
    )
)
"""Programs with which tests are fetched and run: none may be added under such a name, not even where the image has
none."""


def keeper(programs: frozenset[str], path: str, workdir: str) -> Keep:
    """Return what decides on each change.

    programs: names of all programs of the image. path: the image's PATH. workdir: files below it are work, even in a
    folder of the system.
    """
    folders = {posixpath.normpath(folder) for folder in path.split(":") if folder.startswith("/")}
    folders |= {f"/usr{folder}" for folder in folders} | {folder.removeprefix("/usr") for folder in folders}
    names = programs | RUNNERS
    inside = posixpath.normpath(workdir).rstrip("/") + "/"
    workdir_is_system = inside.count("/") < 4  # "/usr/bin/": no folder of a project's own

    def keep(place: str, change: Change, head: Callable[[], bytes]) -> bool:
        if change == "added" and _comes_before_the_library(place, inside):
            return False
        if NEVER.match(place) or STARTS.search(place):
            return False
        folder, name = posixpath.split(place)
        if (folder in folders or folder.endswith("/.local/bin")) and name in names:
            return False
        if SYSTEM.match(place) and (workdir_is_system or not place.startswith(inside)):
            if change != "added" or NOT_ADDED.search(place):
                return False
            return not (name == "entry_points.txt" and b"pytest11" in head())
        return True

    return keep


def _comes_before_the_library(place: str, inside: str) -> bool:
    """Return whether Python, started in the working folder or in the root, finds a file instead of its own module."""
    beside = place.removeprefix(inside) if place.startswith(inside) else place.removeprefix("/")
    folder, _, name = beside.rpartition("/")
    module = folder if name.partition(".")[0] == "__init__" else name.partition(".")[0] if not folder else ""
    return module in LIBRARY and name.endswith((".py", ".so", ".pyc"))
