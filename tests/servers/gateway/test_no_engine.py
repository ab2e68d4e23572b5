"""Without a Docker engine, containers are refused with one sentence; nothing else breaks, and nothing is left open."""

from __future__ import annotations

import asyncio
import gc
import socket
from pathlib import Path

import pytest

from agentgym_servers.gateway.containers import ContainerEngine
from agentgym_servers.gateway.errors import NoEngine


@pytest.mark.parametrize("left", ["nothing", "the socket of one that died"])
def test_no_engine_at_a_unix_socket(left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "docker.sock"
    if left != "nothing":
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
            dead.bind(str(path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with pytest.raises(NoEngine, match=r"no Docker engine answers: .*; start one, or set DOCKER_HOST"):
        asyncio.run(ContainerEngine("gateway").reap(set()))
    gc.collect()  # a socket left open is a ResourceWarning, and warnings are errors


def test_no_engine_at_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    with pytest.raises(NoEngine, match="no Docker engine answers"):
        asyncio.run(ContainerEngine("gateway").reap(set()))
