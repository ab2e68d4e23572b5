"""The three servers on loopback, with bounds that tests can reach."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.gateway.app import create_gateway
from agentgym_servers.gateway.database import RegistrationStore
from agentgym_servers.inference.app import create_inference_app
from agentgym_servers.web.bounds import Bounds
from agentgym_servers.web.run import serve_in_thread

QUICK = Bounds(head_s=0.4, body_s=0.6, linger_s=0.3, unread_s=1.0, connections_per_address=64)


class Letters:
    """A model that says "a": its tokens are bytes."""

    name, max_length, temperature, max_tokens = "letters", 4096, 1.0, 8
    stop_ids: frozenset[int] = frozenset()
    fingerprint, vocabulary = "letters", 256

    def render(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any], options: dict[str, Any]) -> str:
        return "".join(str(message["content"]) for message in messages)

    def encode(self, text: str, special: bool) -> list[int]:
        return list(text.encode(errors="replace"))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")

    async def generate(self, prompt: Sequence[int], *, max_tokens: int, on_token: Any, **_: Any) -> list[int]:
        for _ in range(max_tokens):
            await asyncio.sleep(0)
            on_token(97, -1.0)
        return [0] * max_tokens


@dataclass(frozen=True)
class Served:
    """A running server."""

    kind: str
    url: str
    post: str
    """A path that takes a POST."""
    socket: str
    """A path that opens a WebSocket; the inference server has none, and refuses."""

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)


@contextlib.contextmanager
def env_server(bounds: Bounds = QUICK, **options: Any) -> Iterator[Served]:
    app = create_app({"echo": EchoEnv, "threaded": lambda: EchoEnv(inline=False)}, **options)
    app.state.bounds = bounds
    with serve_in_thread(app) as url:
        yield Served("env", url, "/envs/echo/reset", "/envs/echo/ws?ext=1")


@contextlib.contextmanager
def gateway(folder: Path, upstream: str | None, bounds: Bounds = QUICK, **options: Any) -> Iterator[Served]:
    with contextlib.closing(RegistrationStore(f"sqlite:///{folder / 'gateway.db'}")) as registry:
        app = create_gateway(registry, **options)
        app.state.bounds = bounds
        with serve_in_thread(app) as url:
            if upstream is not None:
                body = {"name": "echo", "url": upstream, "check_tasks": 1}
                assert httpx.post(f"{url}/environments", json=body, timeout=60).status_code == 201
            yield Served("gateway", url, "/envs/echo/reset", "/envs/echo/ws?ext=1")


@contextlib.contextmanager
def inference_server(bounds: Bounds = QUICK) -> Iterator[Served]:
    app = create_inference_app(Letters())  # type: ignore[arg-type]
    app.state.bounds = bounds
    with serve_in_thread(app) as url:
        yield Served("inference", url, "/v1/chat/completions", "/v1/chat/completions")


@pytest.fixture(scope="module", params=["env", "gateway", "inference"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Each of the three."""
    with contextlib.ExitStack() as stack:
        if request.param == "inference":
            yield stack.enter_context(inference_server())
        elif request.param == "env":
            yield stack.enter_context(env_server())
        else:
            upstream = stack.enter_context(env_server())
            yield stack.enter_context(gateway(tmp_path_factory.mktemp("gateway"), f"{upstream.url}/envs/echo"))


@pytest.fixture
def resident_mb() -> Callable[[], float]:
    """Resident megabytes of this process, in which the servers are, without what the tests' own clients left behind:
    httpx's responses are garbage in circles, and the allocator keeps what is freed."""

    def measure() -> float:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    return measure
