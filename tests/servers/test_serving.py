from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest

from agentgym.clients.client import server_process
from agentgym.clients.server_process import _not_started
from agentgym.errors import MissingDependency, UsageError
from agentgym_servers.env_server.app import main, run_server

ECHO = "agentgym.testing:EchoEnv"
COMMAND = [sys.executable, "-m", "agentgym_servers.env_server.app", ECHO, "--port", "0"]


def test_a_server_process_answers_and_ends_with_the_block():
    with server_process([ECHO], options=["--max-sessions", "1"]) as url:
        assert httpx.post(f"{url}/reset", json={"episode_id": "e"}).status_code == 200
        assert httpx.post(f"{url}/reset").status_code == 503
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


def test_a_server_dies_with_its_standard_input():
    with subprocess.Popen(
        [*COMMAND, "--die-with-stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        line = server.stdout.readline()
        assert line.startswith("AgentGym is serving at http://127.0.0.1:")
        server.stdin.write("anything\n")
        server.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(0.3)
        server.stdin.close()
        assert server.wait(10) == 0


def test_a_server_whose_parent_is_killed_leaves_no_orphan():
    script = f"""
import time
from agentgym.clients.client import server_process
with server_process([{ECHO!r}]) as url:
    print(url, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        url = parent.stdout.readline().strip()
        assert httpx.get(f"{url}/health").status_code == 200
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    for _ in range(200):
        try:
            httpx.get(f"{url}/health", timeout=0.1)
        except httpx.TransportError:
            return
        threading.Event().wait(0.05)
    pytest.fail("the server outlived its parent")


def test_a_server_that_cannot_start_says_why(monkeypatch):
    with pytest.raises(UsageError, match="no-such-env"), server_process(["no-such-env"]):
        pass
    with pytest.raises(SystemExit, match="no environment is called"):
        main(["no-such-env"])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="choose another port"):
            run_server([ECHO], port=taken.getsockname()[1])


def test_a_server_without_its_packages_or_too_slow_is_explained():
    missing = _not_started(["x"], 1, 1, ["ModuleNotFoundError: No module named 'fastapi'"])
    assert isinstance(missing, MissingDependency)
    assert "turngym[serve]" in str(missing)
    with pytest.raises(UsageError, match=r"did not answer within 0\.01 s"), server_process([ECHO], startup_s=0.01):
        pass
