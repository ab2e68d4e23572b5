"""The image of the software and research environments, and sandboxes that are containers."""

from __future__ import annotations

import asyncio
import importlib.util
import platform
import socket
from pathlib import Path

import pytest

from agentgym import registry
from agentgym.clients.client import connect
from agentgym_environments.backends.sandbox import Sandbox, backends

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "environments" / "agentgym_environments" / "synthetic" / "swe"
PROFILE = FOLDER / "seccomp.json"
NAMESPACES = ("--security-opt", f"seccomp={PROFILE}", "--security-opt", "systempaths=unconfined")
CALLS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for name, number in {"bpf": 321, "keyctl": 250, "setns": 308, "open_by_handle_at": 304, "io_uring_setup": 425}.items():
    assert libc.syscall(number, 0, 0, 0, 0, 0) == -1
    print(name, os.strerror(ctypes.get_errno()))
"""
"""Calls of x86-64 that the profile keeps from the image's own processes, beside what keeps them from an agent's."""
ROOM = ("--memory", "2g", "--pids-limit", "400")

here = importlib.util.spec_from_file_location("escapes", ROOT / "tests" / "environments" / "escapes.py")
assert here is not None
assert here.loader is not None
escapes = importlib.util.module_from_spec(here)
here.loader.exec_module(escapes)


def test_the_image_is_locked_down_and_a_bug_is_fixed_over_http(images, run, kit):
    images("base")
    image = kit.build(FOLDER, "localhost/agentgym/swe")
    container = run(image, options=(*NAMESPACES, *ROOM))
    assert kit.docker("exec", container.name, "id", "-u") == "10001"
    if platform.machine() == "x86_64":
        refused = kit.docker("exec", container.name, "python", "-c", CALLS).splitlines()
        assert len(refused) == 5
        assert all(line.endswith("Operation not permitted") for line in refused), refused

    async def mend(name: str) -> list[str]:
        async with connect(f"{container.url}/envs/{name}") as env:
            session, lines = env.session(), []
            step = await session.reset(seed=0, options={"split": "test", "task": 0})
            lines.append((await session.step("run touch /usr/x /tmp/x; id -u; ls /proc | grep -c ^[0-9]")).observation)
            while not (step.terminated or step.truncated):
                step = await session.step(await session.solver())
            assert step.info["success"] is True
            await session.close()
            return lines

    for name in ("swe", "swe-hard", "research", "research-hard"):
        (lines,) = asyncio.run(mend(name))
        assert "Read-only file system" in lines


def test_nothing_gets_out_of_a_container_that_is_a_sandbox(tmp_path, kit):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        tmp_path.chmod(0o755)
        escapes.attempt_all(lambda **more: Sandbox(backend="docker", **more), tmp_path, port)
    assert kit.docker("ps", "--all", "--quiet", "--filter", "label=agentgym.sandbox") == ""


def test_a_bug_is_mended_in_containers(kit):
    env = registry.make("swe", sandbox="docker")
    env.reset(seed=0, options={"split": "test", "task": 0})
    assert env.box.backend == "docker"
    assert "passed" in env.step("run echo 'def test(): pass' > test_a.py; python -m pytest -q test_a.py")[0]
    while not env.over:
        env.step(env.solver())
    assert env.success
    env.close()
    assert kit.docker("ps", "--all", "--quiet", "--filter", "label=agentgym.sandbox") == ""


def test_docker_is_chosen_where_bubblewrap_is_not(monkeypatch):
    monkeypatch.setattr(backends, "bubblewrap_problem", lambda: "a sandbox needs bubblewrap")
    assert backends.choose("auto") == "docker"
