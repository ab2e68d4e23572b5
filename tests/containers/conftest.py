"""Images and containers of a real Docker engine. `make containers` runs these tests; without an engine they skip."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
LABEL = f"agentgym.tests={os.getpid()}"
"""Of this process's containers: another of pytest-xdist's has its own."""
LOCKED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
LIMITS = ("--memory", "256m", "--pids-limit", "64", "--cpus", "1")


def docker(*arguments: str, check: bool = True, timeout: float = 120) -> str:
    """What the command prints."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0 or not check, (
        f"docker {' '.join(arguments)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    )
    return done.stdout.strip()


@pytest.fixture(scope="session", autouse=True)
def engine() -> Iterator[None]:
    """Skips without an engine; fails when a test has left a container behind."""
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("no Docker engine answers (docker info); start one to build and run the images")
    yield
    left = docker("ps", "--all", "--quiet", "--filter", f"label={LABEL}")
    assert not left, f"containers were left behind: {left}"


@contextlib.contextmanager
def pip_options() -> Iterator[list[str]]:
    """Build arguments that let pip look for packages where it does here; a folder of wheels is served on loopback."""
    links = os.environ.get("PIP_FIND_LINKS", "")
    given = [f"--build-arg=PIP_EXTRA_INDEX_URL={value}" for value in [os.environ.get("PIP_EXTRA_INDEX_URL")] if value]
    if not Path(links or "/nowhere").is_dir():
        yield given + ([f"--build-arg=PIP_FIND_LINKS={links}"] if links else [])
        return
    handler = functools.partial(QuietHandler, directory=links)
    with _listening(handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield [*given, f"--build-arg=PIP_FIND_LINKS=http://127.0.0.1:{server.server_port}/"]
        server.shutdown()


def _listening(handler: Callable[..., SimpleHTTPRequestHandler]) -> ThreadingHTTPServer:
    """At the same port as the last time where that can be: a build argument that changes spoils Docker's cache."""
    try:
        return ThreadingHTTPServer(("127.0.0.1", 38211), handler)
    except OSError:
        return ThreadingHTTPServer(("127.0.0.1", 0), handler)


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


BASE = ("--build-arg", "PYTHON_IMAGE")
"""Of the images of the Dockerfile: PYTHON_IMAGE where it is set, else the base that the Dockerfile names."""


def build(folder: Path, tag: str, *options: str) -> str:
    docker("build", "--quiet", "--network", "host", "--tag", tag, *options, str(folder), timeout=1500)
    return tag


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """images(target) -> the tag of the image of that target of the Dockerfile, built once."""
    lock = tmp_path_factory.getbasetemp().parent / "base-image.lock"

    @functools.cache
    def built(target: str) -> str:
        if target != "base":
            built("base")
            with pip_options() as options:
                more = options if target == "model" else ()
                return build(ROOT, f"localhost/agentgym/{target}", "--target", target, *BASE, *more)
        with lock.open("w") as held:  # all targets stand on it: the first process builds it, the others find it built
            fcntl.flock(held, fcntl.LOCK_EX)
            return build(ROOT, "localhost/agentgym/base", "--target", "base", *BASE)

    return built


SLIM = "python:3.11-slim-bookworm"
"""The base of Harbor tasks in the tests, and of our own."""


@pytest.fixture(scope="session")
def slim() -> str:
    """The base image, tagged by its public name where PYTHON_IMAGE names it otherwise."""
    if os.environ.get("PYTHON_IMAGE") and not docker("images", "--quiet", SLIM):
        docker("tag", os.environ["PYTHON_IMAGE"], SLIM)
    return SLIM


class Running(NamedTuple):
    name: str
    url: str


@pytest.fixture
def run() -> Iterator[Callable[..., Running]]:
    """run(image, *command) -> a container that serves, locked down; removed after the test."""
    names: list[str] = []

    def start(image: str, *command: str, options: tuple[str, ...] = (), wait: bool = True) -> Running:
        name = f"agentgym-test-{uuid.uuid4().hex[:8]}"
        names.append(name)
        publish = ("--publish", "127.0.0.1::8000", "--label", LABEL)
        docker("run", "--detach", "--name", name, *LOCKED, *LIMITS, *publish, *options, image, *command)
        url = f"http://{docker('port', name, '8000').splitlines()[0]}"
        return answering(Running(name, url)) if wait else Running(name, url)

    yield start
    for name in names:
        docker("rm", "--force", "--volumes", name)


def answering(container: Running) -> Running:
    """Waits until /health answers; fails with the container's log when it ends instead."""
    for _ in range(300):
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{container.url}/health").status_code == 200:
                return container
        if inspect(container.name, "{{.State.Running}}") != "true":
            break
        time.sleep(0.2)
    log = subprocess.run(["docker", "logs", container.name], capture_output=True, text=True)
    pytest.fail(f"{container.name} does not answer: {log.stdout}{log.stderr}")


def inspect(name: str, field: str) -> str:
    return docker("inspect", "--format", field, name)


@pytest.fixture(scope="session")
def kit() -> type:
    """The functions of this file, for the tests beside it."""

    class Kit:
        docker, build, inspect, root, label = (
            staticmethod(docker),
            staticmethod(build),
            staticmethod(inspect),
            ROOT,
            LABEL,
        )

    return Kit
