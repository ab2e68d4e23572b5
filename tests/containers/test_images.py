"""The images: they serve, without root, without a disk to write to, and end when they are told to."""

from __future__ import annotations

import asyncio
import subprocess
import time

import httpx
import pytest

from agentgym.cli.new_env import new_env
from agentgym.clients.client import connect
from agentgym.conformance.run import check_server

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

MEGABYTE = 10**6


def rules_broken(url: str) -> list[str]:
    """What `agentgym envs check URL` says."""
    return [str(finding) for finding in asyncio.run(check_server(url, tasks=5)) if not finding.ok]


def test_the_envs_image_serves_any_of_them_locked_down(images, run, kit):
    envs = ("keydoor", "wordle", "taxi", "tic-tac-toe", "tools-one", "shop")
    container = run(images("envs"), *envs)
    for env in envs:
        assert rules_broken(f"{container.url}/envs/{env}") == []
    inside = ("exec", container.name)
    assert kit.docker(*inside, "id", "-u") == "10001"
    status = kit.docker(*inside, "cat", "/proc/1/status")
    assert ("NoNewPrivs:\t1" in status, "Seccomp:\t2" in status, f"CapBnd:\t{0:016x}" in status) == (True, True, True)
    assert kit.docker(*inside, "sh", "-c", "touch /opt/x /home/x /data/x 2>/dev/null; echo $?") == "1"
    assert kit.docker(*inside, "sh", "-c", "ls -d /root/.cache /tmp/.cache 2>/dev/null | wc -l") == "0"
    packages = kit.docker(*inside, "pip", "list", "--format", "freeze")
    assert "turngym==" in packages
    assert not [line for line in packages.splitlines() if line.startswith(("torch", "nvidia", "transformers"))]
    assert int(kit.inspect(images("envs"), "{{.Size}}")) < 500 * MEGABYTE


def test_dockers_own_health_check_sees_it(images, run, kit):
    container = run(images("envs"), options=("--health-interval", "500ms"))
    for _ in range(100):
        if (status := kit.inspect(container.name, "{{.State.Health.Status}}")) != "starting":
            break
        time.sleep(0.2)
    assert status == "healthy"
    check = ("exec", container.name, "python", "-m", "agentgym_servers.web.healthcheck")
    assert kit.docker(*check) == ""
    with pytest.raises(AssertionError, match="Connection refused"):
        kit.docker(*check, "http://127.0.0.1:9/health")


def test_it_declares_port_user_and_health(images, kit):
    for image in (images("base"), images("envs")):
        assert kit.inspect(image, "{{json .Config.ExposedPorts}}") == '{"8000/tcp":{}}'
        assert kit.inspect(image, "{{.Config.User}}") == "agentgym"
        assert "agentgym_servers.web.healthcheck" in kit.inspect(image, "{{json .Config.Healthcheck.Test}}")


@pytest.mark.parametrize("init", [(), ("--init",)], ids=["as PID 1", "under an init"])
def test_sigterm_ends_it_even_with_sessions_open(images, run, kit, init):
    container = run(images("envs"), "keydoor", options=init)

    async def begin() -> None:
        async with connect(container.url) as env:
            await env.session().reset(seed=0)

    asyncio.run(begin())
    kit.docker("kill", "--signal", "TERM", container.name)
    ended = subprocess.run(["docker", "wait", container.name], capture_output=True, text=True, timeout=5)
    log = subprocess.run(["docker", "logs", container.name], capture_output=True, text=True)
    assert ended.stdout.strip() in ("0", "143"), log.stdout + log.stderr
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{container.url}/health")


def test_an_env_that_does_not_exist_says_so_and_ends(images, run, kit):
    container = run(images("envs"), "no-such-env", wait=False)
    ended = subprocess.run(["docker", "wait", container.name], capture_output=True, text=True, timeout=60)
    assert ended.stdout.strip() == "2"
    log = subprocess.run(["docker", "logs", container.name], capture_output=True, text=True)
    assert "no environment is called 'no-such-env'" in log.stderr


def test_an_env_of_ones_own_becomes_an_image(images, run, kit, tmp_path):
    new_env("row-sort", tmp_path / "row-sort")
    tag = kit.build(tmp_path / "row-sort", "agentgym-test/row-sort", "--build-arg", f"BASE={images('base')}")
    try:
        container = run(tag)
        assert rules_broken(container.url) == []
        assert kit.docker("exec", container.name, "id", "-u") == "10001"
        assert kit.docker("exec", container.name, "agentgym", "envs", "show", "row-sort")
    finally:
        kit.docker("rm", "--force", *kit.docker("ps", "-aq", "--filter", f"ancestor={tag}").split(), check=False)
        kit.docker("rmi", "--force", tag)
