"""A health check is answered beside every flood: no client has the event loop for itself."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from agentgym_servers.web.bounds import Bounds

from .conftest import Served, env_server
from .floods import HTTP, VERBS

MEDIAN_S, WORST_S = 1.0, 5.0
"""For /health, on a machine that is busy with other things: 0.25 s where it is not."""


@contextlib.contextmanager
def flooded(server: Served, name: str) -> Iterator[None]:
    program = [sys.executable, str(Path(__file__).parent / "floods.py"), str(server.address[1]), server.post, name]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            yield
        finally:
            process.kill()


def health_s(server: Served) -> float:
    """Seconds until a new connection has an answer."""
    began = time.monotonic()
    with contextlib.closing(http.client.HTTPConnection(*server.address, timeout=WORST_S)) as connection:
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
    return time.monotonic() - began


def require_lively(server: Served, name: str) -> None:
    with flooded(server, name):
        times, end = [], time.monotonic() + 1.5
        while len(times) < 8 or time.monotonic() < end:
            times.append(health_s(server))
            time.sleep(0.05)
    assert median(times) < MEDIAN_S, times
    assert max(times) < WORST_S, times


@pytest.fixture(scope="module")
def usual() -> Iterator[Served]:
    """A server of environments with the bounds that it has by default."""
    with env_server(Bounds()) as server:
        yield server


@pytest.mark.parametrize("name", HTTP)
def test_a_flood_of_requests(server, name):
    require_lively(server, name)


@pytest.mark.parametrize("name", VERBS)
def test_a_flood_of_verbs(usual, name):
    require_lively(usual, name)
