"""No documented line installs or pulls something foreign under our name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("agentgym", "environments", "servers", "trainers", "docs", "examples", "benchmarks", "deploy", "tests")
FILES = ("README.md", "Dockerfile", "Makefile", "docker-compose.yml", "pyproject.toml")
SUFFIXES = {".py", ".md", ".toml", ".tmpl", ".yaml", ".yml", ".html", ""}
FOREIGN = re.compile(r"pip install (?:-\S+ )*['\"]?agentgym\b|agentgym\\?\[[a-z{]|agentgym *[=<>~]=")
PULLED = re.compile(r"(?:FROM|image:|BASE=|--tag) *[\"']?agentgym/")


def texts() -> Iterator[tuple[Path, str]]:
    paths = [ROOT / name for name in FILES]
    for folder in FOLDERS:
        paths += [path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES and path.is_file()]
    for path in paths:
        if "__pycache__" not in path.parts and path != Path(__file__):
            yield path.relative_to(ROOT), path.read_text(encoding="utf-8", errors="ignore")


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}: {line.strip()[:200]}" for path, text in texts() for line in text.splitlines() if pattern.search(line)
    ]


def test_no_line_installs_the_foreign_distribution():
    assert lines_with(FOREIGN) == []


def test_no_image_can_be_pulled_from_a_public_registry():
    assert lines_with(PULLED) == []


def test_documents_install_from_a_checkout():
    """Until `turngym` is published, a reader who pastes a line must not ask the package index for it."""
    assert [line for line in lines_with(re.compile(r"pip install [^\n]*turngym")) if ".md:" in line.split(" ")[0]] == []


def test_the_distribution_and_its_extras_have_one_name():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [need for needs in project["optional-dependencies"].values() for need in needs]
    assert project["name"] == "turngym"
    assert project["scripts"] == {"agentgym": "agentgym.cli.main:main"}
    assert not [need for need in extras if need.startswith("agentgym")]
