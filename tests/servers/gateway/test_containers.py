"""Replicas in containers of a real engine: `make containers`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentgym_servers.gateway.containers import GATEWAY_LABEL, _url
from agentgym_servers.gateway.database import RegistrationStore
from agentgym_servers.gateway.errors import BadImage, NotStarted
from agentgym_servers.gateway.images import require_image

from .conftest import Api, eventually, gateway_in_thread, gateway_process

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1500)]
ROOT = Path(__file__).parents[3]
IMAGE = "localhost/agentgym/envs"


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """The SDK's client of an engine that has the image."""
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no Docker engine answers (docker info): start one")
    docker = pytest.importorskip("docker", reason="needs the Docker SDK: pip install 'turngym[docker]'")
    how = ["--quiet", "--network", "host", "--build-arg", "PYTHON_IMAGE", "--target", "envs"]
    build = ["docker", "build", *how, "--tag", IMAGE, str(ROOT)]
    built = subprocess.run(build, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-3000:]
    with contextlib.closing(docker.from_env()) as client:
        yield client


@pytest.fixture
def mine(engine: Any, tmp_path: Path) -> Iterator[Any]:
    """All containers of the gateway on tmp_path's database; none may be left at the end."""
    with contextlib.closing(RegistrationStore(f"sqlite:///{tmp_path / 'gateway.db'}")) as registry:
        label = {"label": f"{GATEWAY_LABEL}={registry.id}"}

    def listed() -> list[Any]:
        return engine.containers.list(all=True, filters=label, ignore_removed=True)

    yield listed
    left, networks = listed(), engine.networks.list(filters=label)
    for thing in left:
        thing.remove(force=True)
    for thing in networks:
        thing.remove()
    assert (left, networks) == ([], [])


def played(gateway: Api, name: str) -> str:
    session = gateway.begin(name)
    status, reply = gateway.step(name, session, "look", step=0)
    assert status == 200, reply
    gateway.close(name, session)
    return reply["observation"]["text"]


def test_an_env_in_a_container_is_limited_and_removed(mine, engine, tmp_path, quick):
    limits = {"memory_mb": 256, "cpus": 0.5, "pids": 64}
    with gateway_in_thread(tmp_path) as gateway:
        reply = gateway.register("keydoor", image=IMAGE, limits=limits)
        assert (reply.status_code, reply.json()["state"]) == (201, "live"), reply.text
        assert played(gateway, "keydoor")
        (container,) = mine()
        given = container.attrs["HostConfig"]
        assert (given["Memory"], given["MemorySwap"], given["NanoCpus"]) == (256 * 2**20, 256 * 2**20, 500_000_000)
        assert (given["PidsLimit"], given["ReadonlyRootfs"], given["CapDrop"]) == (64, True, ["ALL"])
        assert given["SecurityOpt"] == ["no-new-privileges"]  # and the engine's own seccomp profile

        def inside(*command: str) -> tuple[int, str]:
            code, output = container.exec_run(list(command))
            return code, output.decode()

        assert inside("id", "-u") == (0, "10001\n")
        status = dict(line.split(":\t", 1) for line in inside("cat", "/proc/1/status")[1].splitlines())
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
        assert inside("sh", "-c", "echo x > /opt/x")[0] != 0
        assert inside("sh", "-c", "echo x > /tmp/x")[0] == 0
        reach = "import socket; socket.create_connection(('8.8.8.8', 53), 2)"
        assert inside("python", "-c", reach)[0] != 0
        (network,) = container.attrs["NetworkSettings"]["Networks"]
        assert engine.networks.get(network).attrs["Internal"]
        assert gateway.http.delete("/environments/keydoor").status_code == 200
        assert mine() == []


def test_a_container_env_is_registered_trained_on_and_removed(mine, tmp_path):
    """From the command line, as a user would: two steps of training, every episode through the gateway."""
    small = ["run.steps=2", "rollout.groups=2", "rollout.group_size=4", "rollout.concurrency=8", "eval.tasks=0"]
    warm = ["sft.demonstrations=16", "sft.max_steps=2", "sft.batch=8"]
    room = ["rollout.max_length=640", "model.tiny.max_length=640"]  # what has hardly learned makes long episodes
    with gateway_process(f"sqlite:///{tmp_path / 'gateway.db'}") as gateway:

        def agentgym(*words: str) -> str:
            command = [sys.executable, "-m", "agentgym", *words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        agentgym("register", "keydoor", "--image", IMAGE, "--gateway", gateway.url)
        assert len(mine()) == 1
        env = f"env.name={gateway.url}/envs/keydoor"
        agentgym("train", "quickstart", env, *small, *warm, *room, "--out", str(tmp_path / "run"))
        steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        assert [step["step"] for step in steps if step["phase"] == "rl"] == [1, 2]
        agentgym("unregister", "keydoor", "--gateway", gateway.url)
        assert mine() == []


def test_a_tag_that_moves_changes_no_registered_env(mine, engine, tmp_path):
    """What was checked is what runs: after the container's end, and after the gateway's."""
    tag, checked = "localhost/agentgym-test/moving", engine.images.get(IMAGE)
    checked.tag(tag)
    try:
        database = f"sqlite:///{tmp_path / 'gateway.db'}"
        with gateway_process(database) as gateway:
            shown = gateway.register("keydoor", image=tag).json()
            assert (shown["image"], shown["image_id"]) == (tag, checked.id)
            engine.images.get("python:3.11-slim-bookworm").tag(tag)
            (first,) = mine()
            first.kill()
            eventually(lambda: first.id not in [one.id for one in mine()] and gateway.env("keydoor")["state"] == "live")
            assert [one.attrs["Image"] for one in mine()] == [checked.id]
        with gateway_process(database) as gateway:
            assert eventually(lambda: gateway.env("keydoor")["state"] == "live")
            assert [one.attrs["Config"]["Image"] for one in mine()] == [checked.id]
    finally:
        engine.images.remove(tag, noprune=True)


def test_an_image_that_is_gone_is_not_replaced_by_its_tag(engine):
    require_image(engine, IMAGE, engine.images.get(IMAGE).id)
    with pytest.raises(BadImage, match="register it again"):
        require_image(engine, IMAGE, f"sha256:{'0' * 64}")


@pytest.mark.parametrize(
    ("lines", "user"),
    [
        ("USER 00", "65534"),
        ("USER root\nRUN echo ' toor:x:000:0::/:/bin/sh' >> /etc/passwd\nUSER toor", None),
        ("USER root\nRUN echo 'toor:x:none:0::/:/bin/sh' >> /etc/passwd\nUSER toor", None),
        ("USER root\nRUN rm /etc/passwd && ln -s /proc/self/environ /etc/passwd\nUSER agentgym", None),
        ("USER root\nRUN head -c 3000000 /dev/zero >> /etc/passwd\nUSER agentgym", None),
    ],
)
def test_no_image_runs_as_root(mine, engine, tmp_path, quick, lines, user):
    dockerfile = io.BytesIO(f"FROM {IMAGE}\n{lines}\n".encode())
    image, _ = engine.images.build(fileobj=dockerfile, rm=True)
    try:
        with gateway_in_thread(tmp_path) as gateway:
            reply = gateway.register("keydoor", image=image.id)
            if user is None:
                assert (reply.status_code, reply.json()["code"]) == (422, "BAD_IMAGE"), reply.text
            else:
                assert reply.status_code == 201, reply.text
                (container,) = mine()
                assert container.exec_run(["id", "-u"]).output.decode().strip() == user
    finally:
        engine.images.remove(image.id, force=True)


def test_a_networked_container_is_published_on_loopback_only(mine, tmp_path, quick):
    with gateway_in_thread(tmp_path) as gateway:
        assert gateway.register("keydoor", image=IMAGE, limits={"network": True}).status_code == 201
        (container,) = mine()
        (binding,) = container.attrs["NetworkSettings"]["Ports"]["8000/tcp"]
        assert binding["HostIp"] == "127.0.0.1"
        assert played(gateway, "keydoor")
    assert mine() == []  # an orderly stop takes it along


def test_a_restarted_gateway_adopts_its_containers_only(mine, engine, tmp_path):
    database = f"sqlite:///{tmp_path / 'gateway.db'}"
    with gateway_process(database) as gateway:
        assert gateway.register("keydoor", image=IMAGE).status_code == 201
        session = gateway.begin("keydoor")
        assert gateway.step("keydoor", session, "look", step=0)[0] == 200
        (container,) = mine()
        gateway.process.kill()
    labels = {GATEWAY_LABEL: container.labels[GATEWAY_LABEL], "agentgym.env": "one whose check was cut off"}
    engine.containers.run(IMAGE, ["keydoor"], detach=True, labels=labels)
    assert len(mine()) == 2
    with gateway_process(database) as gateway:
        assert [one.id for one in mine()] == [container.id]
        assert gateway.step("keydoor", session, "look", step=0)[1]["step"] == 1
        container.kill()
        lost = eventually(lambda: gone(gateway.step("keydoor", session, "look", step=1)))
        assert lost["code"] == "EPISODE_LOST"
        eventually(lambda: gateway.env("keydoor")["state"] == "live" and played(gateway, "keydoor"), 60)
        assert [one.id for one in mine()] != [container.id]
        assert len(mine()) == 1


def gone(answer: tuple[int, dict[str, Any]]) -> dict[str, Any] | None:
    return None if answer[1].get("code") == "UNREACHABLE" else answer[1]


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"image": "agentgym/no-such-image:1"}, "BAD_IMAGE", "is not here and cannot be pulled"),
        ({"image": "no image's name"}, "BAD_IMAGE", "no image's name"),
        ({"image": IMAGE, "port": 9}, "NOT_STARTED", "no health from"),
        ({"image": "python:3.11-slim-bookworm"}, "NOT_STARTED", "ended with status 0"),
        ({"image": IMAGE, "limits": {"memory_mb": 16}}, "NOT_STARTED", "it ended with status"),
        ({"image": IMAGE, "limits": {"cpus": 1000}}, "BAD_IMAGE", "CPUs"),
    ],
)
def test_a_container_that_does_not_serve_says_why_and_is_removed(mine, tmp_path, quick, body, code, message):
    with gateway_in_thread(tmp_path) as gateway:
        reply = gateway.register("keydoor", startup_s=10, **body)
        assert (reply.status_code, reply.json()["code"]) == (422, code), reply.text
        assert message in reply.json()["message"]
        assert mine() == []
        assert gateway.registry.envs() == []


def test_an_ended_container_has_no_address_and_says_how_it_ended(engine):
    """A container may end before its address is read, and after: the error is the same."""
    container = engine.containers.run("python:3.11-slim-bookworm", detach=True)
    try:
        container.wait()
        for published in (True, False):
            with pytest.raises(NotStarted, match="ended with status 0"):
                _url(container, 8000, published=published)
    finally:
        container.remove(force=True)


def test_a_gateway_killed_during_a_check_removes_the_container(mine, tmp_path):
    """At a port where nothing listens the check goes on until its deadline, so that the kill comes in its midst."""
    database = f"sqlite:///{tmp_path / 'gateway.db'}"
    with gateway_process(database) as gateway:

        def ask() -> None:
            with pytest.raises(httpx.RemoteProtocolError):
                gateway.register("keydoor", image=IMAGE, port=9)

        asking = threading.Thread(target=ask)
        asking.start()
        eventually(mine)
        os.kill(gateway.process.pid, signal.SIGKILL)
        asking.join()
    assert len(mine()) == 1
    with gateway_process(database) as gateway:
        assert mine() == []
        assert gateway.http.get("/environments").json() == {"environments": []}
