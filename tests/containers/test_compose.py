"""docker-compose.yml: brought up, used from outside, taken down with nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from click.testing import CliRunner

from agentgym.cli.main import verbs

pytestmark = [pytest.mark.docker, pytest.mark.timeout(2400)]

PROJECT = "agentgym-compose-test"
MINE = f"label=com.docker.compose.project={PROJECT}"


class Up(NamedTuple):
    gateway: str
    model: str
    key: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def compose_command() -> list[str]:
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    pytest.skip("neither `docker compose` nor docker-compose is installed")


@pytest.fixture(scope="module")
def up(images, kit) -> Iterator[Up]:
    """The whole of it, from this checkout's images."""
    for target in ("envs", "gateway", "model"):
        images(target)
    gateway, model = free_port(), free_port()
    ports = {"AGENTGYM_GATEWAY_PORT": str(gateway), "AGENTGYM_MODEL_PORT": str(model)}

    def compose(*arguments: str, timeout: float = 300) -> str:
        command = [*compose_command(), "--project-name", PROJECT, *arguments]
        env = {**os.environ, **ports}
        done = subprocess.run(command, cwd=kit.root, env=env, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        return done.stdout.strip()

    try:
        compose("up", "--detach", "--no-build", timeout=900)
        key = compose("exec", "-T", "gateway", "cat", "/data/key")
        yield Up(f"http://127.0.0.1:{gateway}", f"http://127.0.0.1:{model}", key)
    finally:
        compose("down", "--volumes", "--remove-orphans")
    for kind in ("container", "network", "volume"):
        everything = ["--all"] if kind == "container" else []
        assert kit.docker(kind, "ls", "--quiet", "--filter", MINE, *everything) == ""


def eventually(ask: Callable[[], Any], wanted: Any) -> Any:
    for _ in range(600):
        try:
            if (last := ask()) == wanted:
                return last
        except httpx.TransportError as error:
            last = error
        time.sleep(0.2)
    pytest.fail(f"it stayed {last!r}, not {wanted!r}")


def test_both_envs_are_played_through_the_gateway(up):
    with httpx.Client(base_url=up.gateway, headers={"Authorization": f"Bearer {up.key}"}, timeout=30) as http:
        names = ["keydoor", "wordle"]
        eventually(lambda: sorted(one["name"] for one in http.get("/environments").json()["environments"]), names)
        for name in names:
            opened = http.post(f"/envs/{name}/reset", json={"seed": 0, "index": 0}).json()
            session, done = {"session_id": opened["session_id"]}, False
            while not done:
                action = http.post(f"/envs/{name}/solver", json=session).json()["action"]
                reply = http.post(f"/envs/{name}/step", json={**session, "action": action}).json()
                done = reply["done"]
            assert reply["info"]["success"] is True
            assert http.post(f"/envs/{name}/close", json=session).json()["closed"] is True


def test_an_env_is_checked_and_trained_on_through_the_gateway(up, tmp_path):
    env, key = f"{up.gateway}/envs/keydoor", {"AGENTGYM_KEY": up.key}
    result = CliRunner().invoke(verbs, ["envs", "check", env, "--tasks", "3"], env=key)
    assert (result.exit_code, "keeps all" in result.output) == (0, True), result.output
    small = ["run.steps=2", "rollout.groups=2", "rollout.group_size=4", "rollout.concurrency=8", "eval.tasks=0"]
    warm = ["sft.demonstrations=16", "sft.max_steps=2", "sft.batch=8"]
    room = ["rollout.max_length=640", "model.tiny.max_length=640"]  # what has hardly learned makes long episodes
    command = ["train", "quickstart", f"env.name={env}", *small, *warm, *room, "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(verbs, command, env=key)
    assert result.exit_code == 0, result.output
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps if step["phase"] == "rl"] == [1, 2]


def test_without_the_key_the_gateway_answers_nobody(up):
    assert httpx.get(f"{up.gateway}/health").status_code == 200
    assert httpx.post(f"{up.gateway}/envs/keydoor/reset", json={}).status_code == 401


def test_the_model_is_evaluated_over_its_api(up, tmp_path):
    eventually(lambda: httpx.get(f"{up.model}/health").json()["status"], "healthy")
    assert [card["id"] for card in httpx.get(f"{up.model}/v1/models").json()["data"]] == ["tiny"]
    command = ["eval", f"{up.model}/v1", "--model", "tiny", "--max-new-tokens", "6", "--out", str(tmp_path / "eval")]
    result = CliRunner().invoke(verbs, command)
    assert result.exit_code == 0, result.output
    assert len((tmp_path / "eval" / "attempts.jsonl").read_text().splitlines()) == 24


def test_containers_are_locked_down_and_on_loopback_only(up, kit):
    names = kit.docker("ps", "--all", "--format", "{{.Names}}", "--filter", MINE).splitlines()
    assert len(names) == 7
    for name in names:
        (inspected,) = json.loads(kit.docker("inspect", name))
        host, config = inspected["HostConfig"], inspected["Config"]
        assert (host["ReadonlyRootfs"], host["CapDrop"], host["Init"]) == (True, ["ALL"], True), name
        assert (config["User"], host["Privileged"]) == ("agentgym", False)
        assert host["SecurityOpt"] == ["no-new-privileges:true"]  # and the engine's own seccomp profile
        assert host["Memory"] > 0
        assert host["NanoCpus"] > 0
        assert host["PidsLimit"] > 0
        published = [binding for bindings in (host["PortBindings"] or {}).values() for binding in bindings]
        assert all(binding["HostIp"] == "127.0.0.1" for binding in published)
        assert not any(mount["Type"] == "bind" for mount in inspected["Mounts"])
        if inspected["State"]["Running"]:
            status = kit.docker("exec", name, "cat", "/proc/1/status")
            assert "Seccomp:\t2" in status, name
            assert "NoNewPrivs:\t1" in status, name
            assert f"CapBnd:\t{0:016x}" in status, name


def test_the_envs_reach_nothing_outside(up, images, run, kit):
    """A server on Docker's ordinary network is reached from there, and not from where the environments are."""
    outside = run(images("envs"), "keydoor")
    address = kit.inspect(outside.name, "{{.NetworkSettings.IPAddress}}")
    env = kit.docker("ps", "--quiet", "--filter", MINE, "--filter", "label=com.docker.compose.service=keydoor")
    probe = f"import socket; socket.create_connection(('{address}', 8000), 3)"
    reached = {
        container: subprocess.run(["docker", "exec", container, "python", "-c", probe], capture_output=True).returncode
        for container in (outside.name, env)
    }
    assert reached == {outside.name: 0, env: 1}
