"""The wheel: what it installs, and that it works from another directory."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "agentgym": ROOT / "agentgym",
    "agentgym_environments": ROOT / "environments" / "agentgym_environments",
    "agentgym_servers": ROOT / "servers" / "agentgym_servers",
    "agentgym_credit": ROOT / "trainers" / "agentgym_credit",
    "agentgym_trainers": ROOT / "trainers" / "agentgym_trainers",
}

PLAY = """
import asyncio, sys
import agentgym, agentgym_credit, agentgym_environments, agentgym_servers, agentgym_trainers
from agentgym import registry
from agentgym.rollouts.policy import SolverPolicy

for package in (agentgym, agentgym_credit, agentgym_environments, agentgym_servers, agentgym_trainers):
    assert package.__file__.startswith(sys.argv[1]), package.__file__
print(*registry.list_envs())
episode = agentgym.EpisodeSpec("wordle", "test", 3)
session = agentgym.LocalSession(agentgym.make("wordle"))
played = agentgym.rollout(session, SolverPolicy().actor(episode), agentgym.PromptFormat(), episode, agentgym.Limits())
print(asyncio.run(played).success)
"""


def run(command: Sequence[str], cwd: Path, **env: str) -> str:
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out), str(ROOT)]
    run(build, out)
    (found,) = out.glob("*.whl")
    return found


def test_its_top_level_names_are_ours(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == PACKAGES.keys()
    assert len(top) == 6
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", "test.py"))]


def test_it_holds_every_file_of_the_packages(wheel):
    """Specs, word lists, the report's page, suites, recipes, py.typed: whatever lies beside the code."""
    names = set(zipfile.ZipFile(wheel).namelist())
    there = {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert there == {name for name in names if ".dist-info/" not in name}
    for needed in (
        "agentgym/py.typed",
        "agentgym_trainers/monitoring/report/page.html",
        "agentgym/evaluation/suites/smoke.toml",
        "agentgym/evaluation/viewer.html",
        "agentgym/cli/templates/common/Dockerfile.tmpl",
        "agentgym_environments/diagnostics/keydoor/spec.toml",
        "agentgym_environments/diagnostics/wordle/answers5.txt",
        "agentgym_environments/diagnostics/wordle/LICENSE.scowl",
        "agentgym_trainers/recipes/quickstart.toml",
        "agentgym_trainers/setups/keydoor.toml",
    ):
        assert needed in names


def test_it_works_from_another_directory(wheel, tmp_path):
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    run([*pip, "--target", str(site), str(wheel)], elsewhere)
    output = run([sys.executable, "-c", PLAY, str(site)], elsewhere, PYTHONPATH=str(site))
    envs, success = output.splitlines()
    assert {"keydoor", "oracle", "sokoban", "taxi", "wordle"} <= set(envs.split())
    assert success == "True"
    assert (site / "bin" / "agentgym").is_file()
    listed = run([sys.executable, "-m", "agentgym", "envs", "list"], elsewhere, PYTHONPATH=str(site))
    assert "wordle-mini" in listed


def test_credit_alone_needs_numpy_and_nothing_else(tmp_path):
    build = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        str(tmp_path),
        str(ROOT / "trainers"),
    ]
    run(build, tmp_path)
    (found,) = tmp_path.glob("turngym_credit-*.whl")
    zipfile.ZipFile(found).extractall(tmp_path / "site")
    code = """
import sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
import agentgym_credit
from agentgym_credit.adapters import prime_rl, trl, verl
assert agentgym_credit.__file__.startswith(sys.argv[1])
rows = agentgym_credit.from_rows([[1, 1, 0, 1], [1, 0, 1, 1]], [[0, 0, 0, 1.0], [0, 0, 0, 0]], [0, 0])
print(rows.assign("rloo").tolist())
print(*{name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names - {"agentgym_credit"})
"""
    advantages, others = run([sys.executable, "-I", "-c", code, str(tmp_path / "site")], tmp_path).splitlines()
    assert advantages == "[[1.0, 1.0, 0.0, 1.0], [-1.0, 0.0, -1.0, -1.0]]"
    assert others == "numpy"
