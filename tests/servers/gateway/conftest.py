"""A gateway on loopback: in a thread of this process, or in a process that can be killed."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from running import alive

from agentgym_servers.env_server.app import create_app
from agentgym_servers.gateway import pool
from agentgym_servers.gateway.app import create_gateway
from agentgym_servers.gateway.database import RegistrationStore
from agentgym_servers.web.run import serve_in_thread

ECHO = "agentgym.testing:EchoEnv"


@dataclass
class Api:
    """A running gateway, asked by HTTP."""

    url: str
    http: httpx.Client
    registry: RegistrationStore | None = None
    process: Any = None

    def register(self, name: str, **body: Any) -> httpx.Response:
        return self.http.post("/environments", json={"name": name, "check_tasks": 1, **body})

    def env(self, name: str) -> dict[str, Any]:
        return self.http.get(f"/environments/{name}").json()

    def begin(self, name: str, **body: Any) -> str:
        """The id of a new session."""
        body = {"index": 0, "episode_id": uuid.uuid4().hex, **body}  # an anonymous one may be evicted
        reply = self.http.post(f"/envs/{name}/reset", json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()["session_id"]

    def step(self, name: str, session_id: str, text: str = "apple", **more: Any) -> tuple[int, dict[str, Any]]:
        body = {"session_id": session_id, "action": {"text": text}, **more}
        reply = self.http.post(f"/envs/{name}/step", json=body)
        return reply.status_code, reply.json()

    def close(self, name: str, session_id: str) -> None:
        assert self.http.post(f"/envs/{name}/close", json={"session_id": session_id}).status_code == 200


def eventually(holds: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What `holds` gives once it gives something."""
    give_up = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < give_up, "it did not come true"
        time.sleep(0.05)
    return found


def children_of(pid: int) -> list[int]:
    """Its child processes."""
    return [child.pid for child in psutil.Process(pid).children()]


def running(pids: list[int]) -> list[int]:
    """Those that have not ended."""
    return [pid for pid in pids if alive(pid)]


@contextlib.contextmanager
def gateway_in_thread(folder: Path, **options: Any) -> Iterator[Api]:
    with (
        contextlib.closing(RegistrationStore(f"sqlite:///{folder / 'gateway.db'}")) as registry,
        serve_in_thread(create_gateway(registry, **options)) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        yield Api(url, http, registry)


@contextlib.contextmanager
def gateway_process(database: str, *options: str) -> Iterator[Api]:
    command = [sys.executable, "-m", "agentgym", "gateway", "--port", "0", "--database", database, "--die-with-stdin"]
    with subprocess.Popen(
        [*command, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output = ""
            while not (found := re.search(r"serving at (\S+)", output)):
                line = process.stdout.readline()
                assert line, output
                output += line
            with httpx.Client(base_url=found[1], timeout=60) as http:
                yield Api(found[1], http, process=process)
        finally:
            process.stdin.close()
            process.wait(30)


@contextlib.contextmanager
def env_server(**envs: Any) -> Iterator[str]:
    """Environments served from a thread of this process, by name and factory; `options` are `create_app`'s."""
    options = envs.pop("options", {})
    with serve_in_thread(create_app(envs, **options)) as url:
        yield url


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway in this process looks at its replicas ten times a second."""
    monkeypatch.setattr(pool, "HEALTH_S", 0.1)
    monkeypatch.setattr(pool, "WAITING_S", 0.05)


@pytest.fixture
def gateway(tmp_path: Path, quick: None) -> Iterator[Api]:
    with gateway_in_thread(tmp_path) as api:
        yield api
