"""`agentgym envs new`: a complete, passing package of an environment.

It is rendered from two folders of `agentgym/cli/templates`: `common`, and the one of the template's name.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import tomllib
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from string import Template

from agentgym import __version__, registry
from agentgym.errors import UsageError

RENAMED = {
    "tests/test_env.py": "tests/test_{package}.py",
    "dockerignore": ".dockerignore",
}
"""Files of the template that are called otherwise in the package; a folder `package` takes the package's name."""
ABOUT, SPEC = "about.md", "package/spec.toml"
"""Files of a template of which parts stand in files of `common`: the first is the beginning of the README."""
TEMPLATES = ("text", "qa", "tools", "shell", "browser")
EXTRAS = {"browser": "serve,web"}
"""Extras of AgentGym that a template's environment needs, where the server's are not enough."""
SYSTEM = {"browser": "chromium-headless-shell fonts-liberation libatomic1", "shell": "bubblewrap"}
"""Debian packages that a template's image needs."""


def new_env(name: str, out: Path, template: str = "text") -> list[Path]:
    """Write the package of an environment called `name` into `out`, a folder that is empty or not there; gives its
    files. `template` is one of `TEMPLATES`.

    The environment's id is `name`; the Python package has its hyphens as underscores. Raises UsageError for a name that
    cannot be an environment's or is taken, and for a folder that holds something.
    """
    package = _package_of(name)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is not empty; choose another folder with --out, or another name")
    words = {
        "name": name,
        "package": package,
        "class_name": "".join(word.capitalize() for word in package.split("_")),
        "agentgym_version": __version__,
    }
    texts = _rendered(template, words)
    splits = tomllib.loads(texts[SPEC])["splits"]
    packages = SYSTEM.get(template, "")
    install = f"RUN apt-get update && apt-get install --yes --no-install-recommends {packages}\n" if packages else ""
    words |= {"extras": EXTRAS.get(template, "serve"), "install": install}
    words |= {"about": texts.pop(ABOUT).rstrip("\n"), "counts": _indented(splits)}
    texts |= _rendered("common", words)
    written = []
    for source, text in texts.items():
        path = out / _place(source, words)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{out} cannot be written ({error.strerror}); choose another folder with --out") from error
        written.append(path)
    return sorted(written)


def _rendered(folder: str, words: dict[str, str]) -> dict[str, str]:
    """The texts of a folder of templates, by their paths in it."""
    root = resources.files("agentgym.cli") / "templates" / folder
    return {source: Template(file.read_text(encoding="utf-8")).substitute(words) for source, file in _templates(root)}


def _indented(splits: dict[str, int]) -> str:
    """The number of tasks in each split, as openenv.yaml has it."""
    return "\n".join(f"      {split}: {count}" for split, count in splits.items())


def _package_of(name: str) -> str:
    """The Python package of an environment. Raises UsageError where there can be none of that name."""
    package = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name) or keyword.iskeyword(package):
        raise UsageError(
            f"an environment is called like my-env: lower-case letters and digits, words joined by hyphens, "
            f"and no word of Python's; not {name!r}"
        )
    if name in registry.list_envs():
        raise UsageError(
            f"an environment called {name!r} is installed already ({registry.list_envs()[name]}); choose another name"
        )
    if importlib.util.find_spec(package) is not None:
        raise UsageError(f"a Python package called {package!r} is installed already; choose another name")
    return package


def _templates(folder: Traversable, inside: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        path = f"{inside}{entry.name}"
        if entry.is_dir():
            yield from _templates(entry, f"{path}/")
        elif path.endswith(".tmpl"):
            yield path.removesuffix(".tmpl"), entry


def _place(source: str, words: dict[str, str]) -> PurePosixPath:
    if source in RENAMED:
        return PurePosixPath(RENAMED[source].format(**words))
    return PurePosixPath(*(words["package"] if part == "package" else part for part in source.split("/")))
