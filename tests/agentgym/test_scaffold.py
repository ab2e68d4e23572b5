"""`agentgym envs new`: what it writes is a package that installs, passes its own tests, and can be served."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentgym import registry
from agentgym.cli.main import main, verbs
from agentgym.cli.new_env import TEMPLATES, new_env
from agentgym.clients.server_process import server_process
from agentgym.conformance.run import check_server
from agentgym.errors import UsageError
from agentgym.spec import EnvSpec
from agentgym_environments.backends.browser.browser import browsers
from agentgym_environments.backends.sandbox import backends

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("new") / "here"
    result = CliRunner().invoke(verbs, ["envs", "new", "row-sort", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "agentgym envs check row-sort" in result.output
    return out


@pytest.fixture(scope="module")
def site(project, tmp_path_factory) -> Path:
    """Where the package is installed."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    run([*pip, "--no-build-isolation", "--target", str(target), str(project)], project)
    return target


def run(command: list[str], cwd: Path, *path: Path) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, path), *sys.path])}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_files(project):
    files = {path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()}
    assert {file for file in files if "__pycache__" not in file} == {  # other tests import it
        ".dockerignore",
        "Dockerfile",
        "README.md",
        "openenv.yaml",
        "pyproject.toml",
        "row_sort/__init__.py",
        "row_sort/env.py",
        "row_sort/spec.toml",
        "row_sort/tasks.py",
        "server/app.py",
        "tests/test_row_sort.py",
    }
    assert "FROM ${BASE}" in (project / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize(("template", "package"), [("shell", "bubblewrap"), ("browser", "chromium-headless-shell")])
def test_an_image_has_what_its_environment_runs(template, package, tmp_path):
    new_env("one", tmp_path / "one", template)
    assert f" {package}" in (tmp_path / "one" / "Dockerfile").read_text(encoding="utf-8")


def test_it_passes_its_own_tests_and_the_projects_style(project, tmp_path):
    output = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], project)
    assert "5 passed" in output
    for verb in (["check"], ["format", "--check"]):
        run([sys.executable, "-m", "ruff", *verb, "--no-cache", "--config", str(ROOT / "pyproject.toml"), "."], project)


@pytest.mark.parametrize(
    "template",
    [pytest.param(n, marks=pytest.mark.browser if n == "browser" else ()) for n in TEMPLATES if n != "text"],
)
def test_every_template_passes_its_own_tests_and_the_style(template, tmp_path):
    if template == "shell":
        backends.choose("auto")
    if template == "browser":
        with closing(browsers().open([], (10, 10))):
            pass
    name, folder = f"my-{template}-env", tmp_path / "there"
    result = CliRunner().invoke(verbs, ["envs", "new", name, "--template", template, "--out", str(folder)])
    assert result.exit_code == 0, result.output
    output = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], folder, folder)
    assert " passed" in output
    assert "skipped" not in output
    for verb in (["check"], ["format", "--check"]):
        run([sys.executable, "-m", "ruff", *verb, "--no-cache", "--config", str(ROOT / "pyproject.toml"), "."], folder)
    splits = EnvSpec.load(folder / name.replace("-", "_") / "spec.toml").splits
    declared = (folder / "openenv.yaml").read_text(encoding="utf-8")
    assert all(f"      {split}: {count}\n" in declared for split, count in splits.items())


def test_installed_it_has_a_name_and_is_checked_and_served(site, monkeypatch):
    output = run([sys.executable, "-m", "agentgym", "envs", "check", "row-sort", "--tasks", "5"], site, site)
    assert "row-sort keeps all" in output
    monkeypatch.syspath_prepend(site)
    with server_process(["row-sort"]) as url:
        assert not [finding for finding in asyncio.run(check_server(url, tasks=5)) if not finding.ok]


def test_its_server_is_where_openenv_looks_for_it(project, site):
    output = run([sys.executable, "-c", "from server.app import app; print(app.title)"], project, site)
    assert output == "AgentGym environment server\n"
    declared = (project / "openenv.yaml").read_text(encoding="utf-8")
    splits = EnvSpec.load(project / "row_sort" / "spec.toml").splits
    for line in ("spec_version: 1", "app: server.app:app", "port: 8000", *(f"{k}: {v}" for k, v in splits.items())):
        assert line in declared
    points = tomllib.loads((project / "pyproject.toml").read_text())["project"]["entry-points"][registry.GROUP]
    assert points == {"row-sort": "row_sort"}


@pytest.mark.parametrize("name", ["Row", "row sort", "1row", "row--sort", "class", "", "../row", "row.sort"])
def test_a_name_that_no_env_can_have_is_refused(name, tmp_path):
    with pytest.raises(UsageError, match="an environment is called like my-env"):
        new_env(name, tmp_path / "there")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("name", "reason"), [("keydoor", "an environment called 'keydoor'"), ("json", "a Python package called 'json'")]
)
def test_a_name_that_is_taken_is_refused(name, reason, tmp_path):
    with pytest.raises(UsageError, match=f"{reason} is installed already"):
        new_env(name, tmp_path / name)


def test_a_folder_that_holds_something_is_left_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "row-sort").mkdir()
    (tmp_path / "row-sort" / "mine").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        main(["envs", "new", "row-sort"])
    assert ended.value.code == 2
    assert "row-sort is not empty; choose another folder with --out" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "row-sort").iterdir()] == ["mine"]
