"""Whatever is sent to a socket, it is answered in kind and the server lives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.sync.client import connect

from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.web.run import serve_in_thread

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(10**300, 10**301),
    st.floats(),  # NaN and infinities too: Python writes them, JSON forbids them
    st.text(max_size=20),
    st.sampled_from(["text", "session", "train", "\x00", "\ud800", "a" * 300]),
)
NAMES = """id type data session_id action text tool arguments metadata step steps wait_for wait_s queue_s episode_id
    seed split index timeout_s request_id snapshot jsonrpc method params name tool_name"""
KEYS = st.sampled_from(NAMES.split())
VERBS = "reset step step_many close solver hint snapshot restore state mcp list_tools nope"
TYPES = st.sampled_from(VERBS.split())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.one_of(KEYS, st.text(max_size=5)), inner)),
    max_leaves=12,
)


def framed(**parts: Any) -> Any:
    """Objects that have most of the right keys, and often the right kinds."""
    return st.fixed_dictionaries({}, optional={**parts, "extra": VALUES}).map(json.dumps)


FRAMES = st.one_of(
    framed(id=st.one_of(st.integers(0, 9), VALUES), type=st.one_of(TYPES, VALUES), data=st.one_of(VALUES)),
    framed(type=TYPES, data=st.dictionaries(KEYS, VALUES, max_size=5)),
    framed(id=st.integers(0, 9), type=TYPES, data=st.dictionaries(KEYS, VALUES, max_size=5)),
    framed(jsonrpc=st.just("2.0"), method=st.sampled_from(["tools/list", "tools/call", "x"]), params=VALUES, id=VALUES),
    VALUES.map(json.dumps),
    st.text(max_size=30),
    st.binary(max_size=30),
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve_in_thread(create_app({"echo": EchoEnv, "threaded": lambda: EchoEnv(inline=False)})) as url:
        yield url


def encodable(frame: Any) -> Any:
    return frame.encode("utf-8", "replace").decode() if isinstance(frame, str) else frame


def is_close(frame: Any) -> bool:
    try:
        return isinstance(frame, str) and json.loads(frame) == {"type": "close"}
    except ValueError:
        return False


@pytest.mark.parametrize("path", ["/ws", "/ws?ext=1", "/envs/threaded/ws", "/envs/threaded/ws?ext=1", "/mcp"])
def test_every_frame_is_answered(url, path):
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(frames=st.lists(FRAMES, min_size=1, max_size=6))
    def fuzz(frames: list[Any]) -> None:
        with connect(url.replace("http", "ws") + path, max_size=None, proxy=None) as wire:
            if "ext" in path:
                wire.recv(timeout=10)
            for frame in (encodable(frame) for frame in frames if not is_close(frame)):
                wire.send(frame)
                answer = json.loads(wire.recv(timeout=10))
                if "mcp" in path:
                    assert answer["jsonrpc"] == "2.0"
                else:
                    assert answer["type"] in ("observation", "state", "mcp", "reply", "results", "error")
                text = json.dumps(answer)
                assert "INTERNAL_ERROR" not in text
                assert "has a bug" not in text
                assert "Traceback" not in text

    fuzz()
    assert httpx.get(f"{url}/health").json()["status"] == "healthy"


@pytest.mark.parametrize("path", ["/reset", "/step", "/step_many", "/close", "/restore", "/hint", "/mcp", "/echo/task"])
def test_every_body_is_answered(url, path):
    bodies = st.one_of(
        st.dictionaries(KEYS, VALUES, max_size=6).map(lambda body: json.dumps(body).encode()),
        VALUES.map(lambda value: json.dumps(value).encode()),
        st.binary(max_size=40),
    )

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(body=bodies)
    def fuzz(body: bytes) -> None:
        reply = http.post(url + path, content=body)
        assert reply.status_code in (200, 400, 404, 409, 410, 422, 503), (reply.status_code, reply.text)
        assert "Traceback" not in reply.text
        json.loads(reply.text)

    with httpx.Client() as http:
        fuzz()
