"""Malformed requests and frames, half-sent ones, and clients that take too much, on each of the three servers.

Whatever is sent is refused by a typed 4xx or by closing the connection, and the server answers others meanwhile.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import websockets.sync.client

from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.web.bounds import Bounds
from agentgym_servers.web.run import serve_in_thread

from .conftest import Served, env_server
from .rows import FRAMES, HALF_FRAMES, HALVES, REQUESTS, frame

WAIT_S = 5.0
LIVENESS_S = 5.0
"""For /health beside an attack, on a machine that is busy with other things: 0.25 s where it is not."""
UPGRADE = (
    "GET {} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
JSON_BOMB = b'{"unknown": [' + b"{}," * 450_000 + b"{}]}"


@contextlib.contextmanager
def dialed(server: Served) -> Iterator[socket.socket]:
    with socket.create_connection(server.address, timeout=WAIT_S) as connection:
        yield connection


def send(connection: socket.socket, content: bytes) -> bool:
    """Send as much as the server takes. Return whether it took everything."""
    try:
        connection.sendall(content)
    except (ConnectionError, TimeoutError):
        return False
    return True


def receive(connection: socket.socket, enough: Callable[[bytearray], bool], piece: int = 65536) -> tuple[bytes, bool]:
    """What the server says, until it is enough or the server closes; and whether it closed."""
    content = bytearray()
    while not enough(content):
        try:
            part = connection.recv(piece)
        except ConnectionError:
            return bytes(content), True
        if not part:
            return bytes(content), True
        content += part
    return bytes(content), False


def is_response(content: bytes | bytearray) -> bool:
    head, separator, body = content.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return bool(separator) and length is not None and len(body) >= int(length[1])


def of(server: Served, content: bytes) -> bytes:
    return content.replace(b"POST POST", b"POST " + server.post.encode()).replace(
        b"HOST", "{}:{}".format(*server.address).encode()
    )


def require_alive(server: Served) -> None:
    began = time.monotonic()
    connection = http.client.HTTPConnection(*server.address, timeout=WAIT_S)
    with contextlib.closing(connection):
        connection.request("GET", "/health")
        assert json.load(connection.getresponse())["status"] == "healthy"
    assert time.monotonic() - began < LIVENESS_S


def require_refused(content: bytes, closed: bool) -> None:
    """A whole response has a 4xx and says why in JSON; without one the connection is closed."""
    if not content:
        assert closed
        return
    status = int(content.split(b" ", 2)[1])
    assert 400 <= status < 500, content[:300]
    assert b"Traceback" not in content
    assert b"has a bug" not in content
    if is_response(content) and not content.endswith(b"\r\n\r\n"):
        answer = json.loads(content.partition(b"\r\n\r\n")[2])
        assert answer.get("message") or answer["error"]["message"]


@pytest.mark.parametrize("content", REQUESTS, ids=range(len(REQUESTS)))
def test_a_malformed_request_is_refused(server, content):
    with dialed(server) as connection:
        send(connection, of(server, content))
        require_refused(*receive(connection, is_response))
    require_alive(server)


@pytest.mark.parametrize("content", HALVES, ids=range(len(HALVES)))
def test_a_half_sent_request_is_given_up(server, content):
    with dialed(server) as connection:
        send(connection, of(server, content))
        content, closed = receive(connection, lambda _: False)
        assert closed
        if content and not content.startswith(b"HTTP/1.1 200"):
            require_refused(content, closed)
    require_alive(server)


def opened(server: Served, connection: socket.socket, path: str) -> bool:
    """Open a WebSocket. False, checked, where the server has none."""
    send(connection, UPGRADE.format(path, "{}:{}".format(*server.address)).encode())
    content, closed = receive(connection, lambda content: content.endswith(b"\r\n\r\n"), 1)
    if content.startswith(b"HTTP/1.1 101"):
        return True
    require_refused(content, closed)
    return False


def read_frame(connection: socket.socket) -> tuple[int, bytes] | None:
    """The opcode and payload of the server's next frame; None when it has closed the connection."""
    try:
        first, size = exactly(connection, 2)
        if size >= 126:
            size = int.from_bytes(exactly(connection, 2 if size == 126 else 8))
        return first & 15, exactly(connection, size)
    except ConnectionError:
        return None


def exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes. Raises ConnectionError at the end."""
    content = b""
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise ConnectionError
        content += part
    return content


def require_answered(answer: tuple[int, bytes] | None) -> None:
    """An error of a type, a pong, a close with a code, or the end."""
    if answer is None:
        return
    opcode, payload = answer
    assert b"INTERNAL_ERROR" not in payload
    assert b"has a bug" not in payload
    if opcode == 1:
        message = json.loads(payload)
        assert message["type"] == "error"
        assert message["data"]["message"]
    elif opcode == 8 and payload:
        assert 1000 <= struct.unpack("!H", payload[:2])[0] < 5000


@pytest.mark.parametrize("path", ["/ws?ext=1", "/ws"])
@pytest.mark.parametrize("content", FRAMES, ids=range(len(FRAMES)))
def test_a_malformed_frame_is_answered(server, path, content):
    with dialed(server) as connection:
        if opened(server, connection, server.socket.replace("/ws?ext=1", path)):
            if "ext" in path:
                assert read_frame(connection)[0] == 1  # the server's hello
            send(connection, content + frame(b"{}"))
            require_answered(read_frame(connection))
    require_alive(server)


@pytest.mark.parametrize("content", HALF_FRAMES, ids=range(len(HALF_FRAMES)))
def test_a_half_sent_frame_is_given_up(server, content):
    with dialed(server) as connection:
        if opened(server, connection, server.socket):
            read_frame(connection)
            send(connection, content)
            require_answered(read_frame(connection))
    require_alive(server)


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nX: ", b"GET /", b"GET / HTTP/1.1\r\nHost: HOST\r\n", b""])
def test_a_head_without_end_takes_no_memory(server, resident_mb, start):
    before, sent = resident_mb(), 0
    piece = b"X: y\r\n" * 10_000 if start.endswith(b"\n") or not start else b"h" * 65536
    with dialed(server) as connection:
        going = send(connection, of(server, start))
        while going and sent < 100 * 2**20:
            going = send(connection, piece)
            sent += len(piece)
    assert sent < 50 * 2**20
    assert resident_mb() - before < 64
    require_alive(server)


def test_large_resets_are_refused_and_not_kept(server, resident_mb):
    before = resident_mb()
    bodies = [b'{"unknown": "' + b"u" * 15_000_000 + b'"}', JSON_BOMB] * 6
    for body in bodies:
        with contextlib.suppress(httpx.WriteError, httpx.ReadError):
            reply = httpx.post(server.url + server.post, content=body, timeout=WAIT_S)
            assert 400 <= reply.status_code < 500, reply.text[:300]
        require_alive(server)
    assert resident_mb() - before < 200


def test_one_address_has_so_many_connections(server):
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(dialed(server)) for _ in range(70)]
        content, closed = receive(connections[-1], is_response)
        assert (closed, content) == (True, b"") or content.startswith(b"HTTP/1.1 429")
    time.sleep(0.1)
    require_alive(server)


@pytest.mark.parametrize("name", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.example"])
@pytest.mark.parametrize("path", ["/health", "/openapi.json", "/metrics", "/envs", "/v1/models", "/envs/echo/metadata"])
def test_a_page_of_a_foreign_name_reads_nothing(server, name, path):
    reply = httpx.get(server.url + path, headers={"Host": name})
    assert (reply.status_code, reply.json()["code"]) == (421, "WRONG_HOST")
    assert "--allow-host" in reply.json()["message"]


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:80", "app.localhost", "127.0.0.1", "[::1]:8000", ""])
def test_the_server_answers_to_its_own_names(server, name):
    assert httpx.get(f"{server.url}/health", headers={"Host": name}).status_code == 200


def test_a_further_name_is_configured():
    with env_server(hosts=["gym.example"]) as server:
        assert httpx.get(f"{server.url}/health", headers={"Host": "GYM.example:80"}).status_code == 200
        assert httpx.get(f"{server.url}/health", headers={"Host": "gym.example.evil"}).status_code == 421


def flood(server: Served, connection: socket.socket, question: bytes) -> None:
    """Ask without reading until the server ends the connection; it answers others meanwhile."""
    connection.settimeout(0.5)
    rest, until = memoryview(question), time.monotonic() + 60
    while time.monotonic() < until:
        try:
            rest = rest[connection.send(rest) :] or memoryview(question)
        except TimeoutError:
            require_alive(server)
        except ConnectionError:
            return
    pytest.fail("the server still listens")


def test_a_client_that_does_not_read_is_cut(server, resident_mb):
    if server.kind == "inference":
        pytest.skip("it has no WebSocket")
    before = resident_mb()
    with dialed(server) as connection:
        assert opened(server, connection, server.socket)
        flood(server, connection, frame(json.dumps({"id": 1, "type": "reset", "data": {"seed": -1}}).encode()) * 1000)
        require_alive(server)
        assert resident_mb() - before < 128


def test_calls_under_way_are_bounded(resident_mb):
    """A client that asks faster than it is answered is not read further."""
    slow = create_app({"slow": lambda: EchoEnv(inline=False, latency_s=0.5)}, max_sessions=4)
    with serve_in_thread(slow) as url, websockets.sync.client.connect(f"ws{url[4:]}/ws?ext=1", proxy=None) as wire:
        wire.recv()
        before = resident_mb()
        raw = wire.socket
        raw.settimeout(1.0)
        reset = frame(b'{"id": 1, "type": "reset", "data": {"queue_s": 5}}') * 1000
        with contextlib.suppress(TimeoutError, OSError):
            for _ in range(200):
                raw.sendall(reset)
        began = time.monotonic()
        assert httpx.get(f"{url}/health", timeout=WAIT_S).status_code == 200
        assert time.monotonic() - began < LIVENESS_S
        assert resident_mb() - before < 128


def test_sessions_of_one_address_are_bounded():
    with env_server(sessions_per_address=2) as server:

        def reset(number: int) -> httpx.Response:
            return httpx.post(server.url + server.post, json={"episode_id": str(number), "index": 0})

        assert [reset(i).status_code for i in range(3)] == [200, 200, 429]
        refused = reset(2)
        assert (refused.json()["code"], refused.headers["Retry-After"]) == ("QUOTA_EXCEEDED", "1")
        assert "close some" in refused.json()["message"]
        assert reset(0).status_code == 200  # the same session again
        session_id = reset(0).json()["session_id"]
        assert httpx.post(f"{server.url}/envs/echo/close", json={"session_id": session_id}).status_code == 200
        assert reset(2).status_code == 200


def test_options_are_bounded_and_long_actions_not_kept(resident_mb):
    with env_server(Bounds()) as server:
        reply = httpx.post(server.url + server.post, json={"index": 0, "unknown": "u" * 70_000})
        assert (reply.status_code, reply.json()["code"]) == (422, "BAD_REQUEST")
        assert "65536 bytes" in reply.json()["message"]
        text = "t" * 10_000_000

        def play(session: int) -> None:
            opened = httpx.post(server.url + server.post, json={"episode_id": f"long-{session}", "index": 0}).json()
            for step in range(5):
                body = {"session_id": opened["session_id"], "action": {"text": text}, "step": step}
                reply = httpx.post(f"{server.url}/envs/echo/step", json=body, timeout=WAIT_S)
                assert reply.status_code == 200, reply.text[:300]

        play(0)  # loads what a server loads once
        before = resident_mb()
        for session in range(1, 5):
            play(session)
        assert resident_mb() - before < 4 * 10 + 60  # the last reply of each; 160 MB with four


FLOOD = """
import os
from agentgym.testing import EchoEnv

class Flood(EchoEnv):
    def __init__(self):
        super().__init__(inline=False)

    def step(self, action):
        for _ in range(1000):
            os.write(1, b"x" * 30_000 + b"\\n")
        return super().step(action)
"""


def test_an_env_that_prints_without_end_loses_its_log(tmp_path, monkeypatch):
    """30 MB: at the rate that the log takes, half a minute."""
    (tmp_path / "flood_env.py").write_text(FLOOD)
    monkeypatch.syspath_prepend(str(tmp_path))
    with serve_in_thread(create_app(["flood_env:Flood"], workers=1)) as url:
        session_id = httpx.post(f"{url}/reset", json={"index": 0}, timeout=60).json()["session_id"]
        began = time.monotonic()
        body = {"session_id": session_id, "action": {"text": "apple"}}
        assert httpx.post(f"{url}/step", json=body, timeout=60).status_code == 200
        assert time.monotonic() - began < 15


def test_rows_are_as_many_as_promised():
    rows: list[Any] = [*REQUESTS, *HALVES, *FRAMES, *HALF_FRAMES]
    assert len(rows) >= 120
    assert os.path.exists("/proc/self/status")
