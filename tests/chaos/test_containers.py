"""The gateway, its containers and their engine are killed in the middle of sessions: `make chaos`."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import shutil
import socket
import socketserver
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from chaos.ledger import Tally, now_and_then, play_by_both_wires
from chaos.processes import Server, command_of, kill, wait_for
from chaos.test_gateway import register

from agentgym_servers.gateway.containers import GATEWAY_LABEL
from agentgym_servers.gateway.database import RegistrationStore

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
IMAGE = "localhost/agentgym-test/ledger"
DOCKERFILE = """FROM localhost/agentgym/envs
ENV PYTHONPATH=/opt
COPY envs.py /opt/chaos/envs.py
CMD ["chaos.envs:Ledger", "--lease", "10"]
"""
ENGINE_S = 120.0
RECOVERY_S = 120.0
BRIDGE = "agentgym-chaos"


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr[-3000:]}"
    return done.stdout.strip()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The environments' image with `chaos.envs` in it, in the machine's engine."""
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("no Docker engine answers (docker info): start one")
    pytest.importorskip("docker", reason="needs the Docker SDK: pip install 'turngym[docker]'")
    how = ["--quiet", "--network", "host", "--build-arg", "PYTHON_IMAGE", "--target", "envs"]
    docker("build", *how, "--tag", "localhost/agentgym/envs", str(ROOT))
    folder = tmp_path_factory.mktemp("image")
    (folder / "Dockerfile").write_text(DOCKERFILE)
    shutil.copy(ROOT / "tests" / "chaos" / "envs.py", folder)
    docker("build", "--quiet", "--tag", IMAGE, str(folder))
    return IMAGE


class Engine:
    """A Docker engine beside the machine's own, to be killed: its own folder, socket and bridge, and no firewall rules.

    Without a bridge of its own, or with none, an engine takes or removes the one of the machine's engine (docker0)."""

    def __init__(self, folder: Path) -> None:
        self.address, self._folder = f"unix://{folder / 'docker.sock'}", folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, again where it ends, and come back when it answers."""
        command = ["docker", "--host", self.address, "info"]

        def answers() -> bool:
            if self._process is None or self._process.poll() is not None:
                self._process = self._begin()
            return not subprocess.run(command, capture_output=True).returncode

        wait_for(answers, ENGINE_S, self._tail)

    def kill(self) -> None:
        """SIGKILL, to its containerd as well."""
        assert self._process is not None
        containerd = int((self._folder / "exec-root" / "containerd" / "containerd.pid").read_text())
        for pid in (self._process.pid, containerd):
            kill(pid)
        self._process.wait()

    def stop(self) -> None:
        """Stop it, and what a killed one has left: its containers with their shims, and mounts."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(ENGINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
            if str(self._folder) in command_of(pid) and "containerd-shim" in command_of(pid):
                for child in psutil.Process(pid).children():
                    kill(child.pid)
                kill(pid)
        mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for place in sorted((one for one in mounted if one.startswith(str(self._folder))), reverse=True):
            subprocess.run(["umount", "--lazy", place], check=True)

    def _begin(self) -> subprocess.Popen[bytes]:
        for left in ("pidfile", "exec-root/containerd/containerd.pid"):
            (self._folder / left).unlink(missing_ok=True)
        folders = [f"--{name}={self._folder / name}" for name in ("data-root", "exec-root", "pidfile")]
        alone = [f"--bridge={BRIDGE}", "--iptables=false", "--ip-forward=false", "--ip-masq=false"]
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(["dockerd", f"--host={self.address}", *folders, *alone], stdout=log, stderr=log)

    def _tail(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-2000:]


@pytest.fixture
def engine(image: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine of the test's own that has the image; DOCKER_HOST leads to it."""
    if os.geteuid() or shutil.which("dockerd") is None:
        pytest.skip("to start a Docker engine needs root and dockerd: apt-get install docker.io")
    with tempfile.TemporaryDirectory(prefix="agentgym-") as folder:
        own = Engine(Path(folder))
        bridge(add=True)
        try:
            own.start()
            with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saving:
                subprocess.run(["docker", "--host", own.address, "load", "--quiet"], stdin=saving.stdout, check=True)
            monkeypatch.setenv("DOCKER_HOST", own.address)
            yield own
        finally:
            own.stop()
            bridge(add=False)


def bridge(*, add: bool) -> None:
    """Add or remove the network interface of the test's own engine (linux/sockios.h)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        if add:
            fcntl.ioctl(device, 0x89A0, BRIDGE.encode() + b"\0")  # SIOCBRADDBR
        else:
            fcntl.ioctl(device, 0x8914, struct.pack("16sH14x", BRIDGE.encode(), 0))  # SIOCSIFFLAGS: down
            fcntl.ioctl(device, 0x89A1, BRIDGE.encode() + b"\0")  # SIOCBRDELBR


class Storm:
    """Sessions through a gateway to an environment in two containers, and what the test does to them meanwhile."""

    def __init__(self, gateway: Server, gateway_id: str, ledger: Path) -> None:
        self.gateway, self.ledger = gateway, ledger
        self._label, self._chance = f"label={GATEWAY_LABEL}={gateway_id}", random.Random(1)

    def containers(self, *more: str) -> list[str]:
        return docker("ps", "--quiet", "--no-trunc", "--filter", self._label, *more).split()

    def kill_gateway(self) -> None:
        self.gateway.kill()
        self.gateway.start()

    def kill_container(self) -> None:
        self._one("kill")

    def freeze_container(self) -> None:
        """For good: the gateway has to notice."""
        self._one("pause")

    def _one(self, deed: str) -> None:
        if running := self.containers("--filter", "status=running"):
            with contextlib.suppress(AssertionError):  # it has ended meanwhile
                docker(deed, self._chance.choice(running))

    def play(self, chaos, deeds: list[Callable[[], None]], episodes: int, every: int) -> Tally:
        """Play until each deed was done, in random order, at random moments; then once more, with nothing done.

        How many episodes a deed ends is chance (all 16 may be under way); after the last one, none may fail."""
        self._chance.shuffle(deeds)

        async def next_deed() -> None:
            if deeds:
                await asyncio.to_thread(deeds.pop())

        async def main(collector: str) -> Tally:
            total, urls = Tally(), [f"{self.gateway.url}/envs/contained"]
            how = {"pace_s": 0.05, "collector": collector, "retries": 9, "capacity_wait_s": 60}
            async with now_and_then(self.ledger, every, next_deed):
                while deeds or not total.episodes:
                    total += await play_by_both_wires(urls, chaos.seeds(episodes), self.ledger, **how)
            await asyncio.to_thread(wait_for, self._both_ready, RECOVERY_S, self.gateway.tail)
            calm = await play_by_both_wires(urls, chaos.seeds(episodes), self.ledger, **how)
            assert calm.completed == calm.episodes, calm
            total += calm
            return total

        with collecting(self.ledger, self._host_address()) as collector:
            return asyncio.run(main(collector))

    def _both_ready(self) -> bool:
        running = self.containers("--filter", "status=running")
        return len(running) == self.gateway.get("/envs/contained/health")["replicas"] == 2

    def _host_address(self) -> str:
        network = docker("network", "ls", "--quiet", "--filter", self._label)
        return docker("network", "inspect", "--format", "{{(index .IPAM.Config 0).Gateway}}", network)


@contextlib.contextmanager
def collecting(ledger: Path, host: str) -> Iterator[str]:
    """A server on the containers' network that appends the lines it gets to the ledger; gives HOST:PORT."""
    lock = threading.Lock()

    class Append(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline()
            with lock, ledger.open("ab") as file:
                file.write(line)
            with contextlib.suppress(OSError):  # its container was killed
                self.wfile.write(b".")

    with socketserver.ThreadingTCPServer((host, 0), Append) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{host}:{server.server_address[1]}"
        server.shutdown()


@contextlib.contextmanager
def storm(chaos, tmp_path: Path) -> Iterator[Storm]:
    """A gateway with the environment in two containers. Nothing of it may be left at the end."""
    database = f"sqlite:///{tmp_path / 'gateway.db'}"
    with chaos.server("agentgym", "gateway", "--database", database) as gateway:
        with contextlib.closing(RegistrationStore(database)) as registry:
            storm = Storm(gateway, registry.id, tmp_path / "ledger")
        try:
            register(gateway, 201, name="contained", image=IMAGE, replicas={"min": 2, "max": 2})
            yield storm
            gateway.stop()
            left = storm.containers("--all")
        finally:
            for one in storm.containers("--all"):
                docker("rm", "--force", one)
        assert left == [], f"containers were left behind\n{gateway.tail()}"


def test_gateway_and_containers_killed_and_frozen(tmp_path, chaos, image):
    """No step is applied twice, every reward that arrives is right, and no container is left."""
    with storm(chaos, tmp_path) as sessions:
        deeds = [sessions.kill_gateway, sessions.kill_container] * 2 + [sessions.freeze_container]
        tally = sessions.play(chaos, deeds, episodes=32, every=20)
        chaos.settled(sessions.gateway, tally, "/envs/contained/health")
    assert tally.failed["EPISODE_LOST"] > 0, tally


def test_engine_killed(tmp_path, chaos, engine):
    """Its containers end with it; the gateway starts others once it is back, and leaves none behind."""

    def kill_engine() -> None:
        engine.kill()
        engine.start()

    def kill_both() -> None:
        sessions.gateway.kill()
        kill_engine()
        sessions.gateway.start()

    with storm(chaos, tmp_path) as sessions:
        tally = sessions.play(chaos, [kill_engine, kill_both, sessions.kill_container], episodes=16, every=20)
        chaos.settled(sessions.gateway, tally, "/envs/contained/health")
    assert tally.failed.total() > 0, tally
