"""The other side from PyPI: `make interop` installs it beside this environment, whose pins differ."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentgym_servers.env_server.app import create_app
from agentgym_servers.web.run import serve_in_thread

HERE = Path(__file__).parent
VARIABLE = "AGENTGYM_INTEROP_PYTHON"


@pytest.fixture(scope="session")
def upstream() -> str:
    """An interpreter that has the `openenv` package."""
    interpreter = os.environ.get(VARIABLE)
    if not interpreter:
        pytest.skip(f"{VARIABLE} names no interpreter that has the openenv package: run `make interop`")
    return interpreter


@pytest.fixture(scope="session")
def verifiers() -> str:
    """An interpreter that has the `verifiers` package, which pins another version of openai."""
    interpreter = os.environ.get("AGENTGYM_VERIFIERS_PYTHON")
    if not interpreter:
        pytest.skip("AGENTGYM_VERIFIERS_PYTHON names no interpreter that has verifiers: run `make interop`")
    return interpreter


@pytest.fixture(scope="session")
def run_upstream(upstream) -> Callable[..., str]:
    """`run_upstream(script, *arguments)` runs a script of this folder there and returns its standard output."""

    def run(script: str, *arguments: str) -> str:
        done = subprocess.run(
            [upstream, str(HERE / script), *arguments], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def openenv_server(upstream) -> Iterator[str]:
    """The URL of a real OpenEnv server."""
    with subprocess.Popen(
        [upstream, str(HERE / "openenv_server.py"), "0"], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line.startswith("serving at "), line
            yield line.split()[-1]
        finally:
            server.kill()


@pytest.fixture(scope="module")
def our_server() -> Iterator[str]:
    """The URL of our server ."""
    with serve_in_thread(create_app(["agentgym.testing:EchoEnv"])) as url:
        yield url
