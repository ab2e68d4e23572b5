"""The documents are true: their Python runs and prints what they show, their TOML parses, their links and paths lead
somewhere.

    python tests/test_docs.py      writes anew what the blocks print (a ```text block right after a ```python block)
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"`([\w.*/-]+/[\w.*/-]*|[\w-]+\.(?:py|md|toml|html|yaml))`")
LIBRARY_SOCKETS = 1  # gloo listens to the end of the process, whatever becomes of its process group
DRAWERS = ("agentgym", "environments", "servers", "trainers", "tests", "benchmarks", "examples", "docs")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    start: int
    """Offset of `text` in the document."""
    line: int


def blocks(document: str) -> list[Block]:
    return [
        Block(found[1], found[2], found.start(2), document.count("\n", 0, found.start()) + 2)
        for found in FENCE.finditer(document)
    ]


def run(document: str, name: str) -> Iterator[tuple[Block, str, Block | None]]:
    """(python block, what it printed, the text block right after it if there is one), in one namespace."""
    namespace: dict[str, object] = {"__name__": "__docs__"}
    found = blocks(document)
    for block, after in zip(found, [*found[1:], None]):
        if block.language != "python":
            continue
        printed = io.StringIO()
        code = compile("\n" * (block.line - 1) + block.text, name, "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        gap = document[block.start + len(block.text) : after.start] if after else ""
        shown = after if after is not None and after.language == "text" and gap == "```\n```text\n" else None
        yield block, printed.getvalue(), shown


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_its_python_runs_and_prints_what_is_shown(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    for block, printed, shown in run(path.read_text(encoding="utf-8"), path.name):
        if shown is not None:
            assert printed.rstrip() == shown.text.rstrip(), f"{path.name}, line {block.line}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_its_toml_parses(path, tmp_path):
    """A block with [credit] is a recipe, one without a name a setup, with [[env]] a suite, with max_turns a spec."""
    from agentgym.evaluation.suite import load_suite
    from agentgym.spec import EnvSpec
    from agentgym_trainers.recipe import resolve

    for block in blocks(path.read_text(encoding="utf-8")):
        if block.language != "toml":
            continue
        tree = tomllib.loads(block.text)
        file = tmp_path / f"line-{block.line}.toml"
        file.write_text(block.text, encoding="utf-8")
        if isinstance(tree.get("env"), list):
            load_suite(file)
        elif "credit" in tree and ("env" in tree or "setup" in tree):
            resolve(file)
        elif "env" in tree and "name" not in tree:
            resolve("reinforce", setup=file)
        elif "max_turns" in tree:
            EnvSpec.load(file)


def prose(document: str) -> str:
    return FENCE.sub("", document)


def anchors(document: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_its_links_lead_somewhere(path):
    for link in LINK.findall(prose(path.read_text(encoding="utf-8"))):
        if "://" in link or link.startswith("mailto:"):
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), f"{path.name} links to {link}"
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), f"{path.name} links to {link}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_the_files_it_names_are_there(path):
    """A path in backticks that begins with a folder of the repository exists there; `*` stands for anything."""
    for named in PATH.findall(prose(path.read_text(encoding="utf-8"))):
        if named.split("/")[0] in DRAWERS and "/" in named:
            assert list(ROOT.glob(named.rstrip("/"))), f"{path.name} names {named}"


def test_every_assigner_is_described():
    from agentgym_trainers.credit import ASSIGNERS

    assert all(f"### `{name}`" in (ROOT / "docs" / "credit.md").read_text(encoding="utf-8") for name in ASSIGNERS)


def test_nothing_of_one_machine_is_named():
    for path in [*DOCUMENTS, *(ROOT / "examples").glob("*.py")]:
        assert not re.search(r"/(?:tmp|root|home|work|mnt)/", path.read_text(encoding="utf-8")), path.name


def rewrite(path: Path) -> None:
    document = path.read_text(encoding="utf-8")
    new, at = "", 0
    for _, printed, shown in run(document, path.name):
        if shown is not None:
            new += document[at : shown.start] + printed.rstrip() + "\n"
            at = shown.start + len(shown.text)
    path.write_text(new + document[at:], encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "examples"))
    for document in [Path(name).resolve() for name in sys.argv[1:]] or DOCUMENTS:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            rewrite(document)
