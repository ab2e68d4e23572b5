"""The gateway: keys end their sockets and count their frames, quotas, piped environments, addresses of URLs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import websockets.sync.client
from fastapi import FastAPI, Response, WebSocket
from websockets.exceptions import ConnectionClosed

from agentgym.errors import EnvironmentFailure
from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.gateway import auth
from agentgym_servers.gateway.auth import new_key
from agentgym_servers.gateway.database import RegistrationStore
from agentgym_servers.gateway.destinations import AddressForbidden, Destinations
from agentgym_servers.gateway.replica_client import MAX_REPLY, ReplicaClient
from agentgym_servers.gateway.targets import MalformedTarget, target_of
from agentgym_servers.web.run import serve_in_thread

from .conftest import Served, env_server, gateway

EVERY = ("register", "run", "read")
PAGE = "<html><script>fetch('/environments', {method: 'POST'})</script></html>"


@pytest.fixture
def upstream() -> Iterator[str]:
    with env_server() as server:
        yield f"{server.url}/envs/echo"


@pytest.fixture
def registry(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistrationStore]:
    monkeypatch.setattr(auth, "REFRESH_S", 0.2)
    with contextlib.closing(RegistrationStore(f"sqlite:///{tmp_path / 'gateway.db'}")) as found:
        yield found


def make(registry: RegistrationStore, lifetime_s: float | None = None) -> tuple[str, dict[str, str]]:
    """A key's id, and the headers that carry it."""
    key, secret = new_key("test", EVERY, lifetime_s)
    registry.add_key(key)
    return key.id, {"Authorization": f"Bearer {secret}"}


def register(server: Served, url: str, headers: dict[str, str], name: str = "echo") -> httpx.Response:
    body = {"name": name, "url": url, "check_tasks": 1}
    return httpx.post(f"{server.url}/environments", json=body, headers=headers, timeout=60)


@contextlib.contextmanager
def dialed(server: Served, headers: dict[str, str], path: str = "/envs/echo/ws?ext=1") -> Iterator[Any]:
    url = f"ws{server.url[4:]}{path}"
    with websockets.sync.client.connect(url, additional_headers=headers, proxy=None, open_timeout=20) as wire:
        yield wire


def closing(wire: Any, seconds: float) -> tuple[int, str]:
    """The code and reason with which the server closes within so long."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        try:
            wire.recv(timeout=seconds)
        except ConnectionClosed as closed:
            return (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd is not None else (0, "")
    pytest.fail("the socket was not closed")


@pytest.mark.parametrize("path", ["/envs/echo/ws?ext=1", "/envs/echo/ws", "/envs/theirs/ws"])
def test_a_revoked_key_closes_its_sockets(tmp_path, registry, upstream, path):
    key_id, headers = make(registry)
    _, other = make(registry)
    with serve_in_thread(foreign()) as theirs, gateway(tmp_path, None) as server:
        assert register(server, upstream, headers).status_code == 201
        assert register(server, theirs, headers, "theirs").status_code == 201
        with dialed(server, headers, path) as wire, dialed(server, other, path) as kept:
            registry.revoke_key(key_id)
            assert closing(wire, 5) == (1008, auth.KEY_ENDED)
            kept.ping().wait(5)


def test_an_expired_key_closes_its_sockets(tmp_path, registry, upstream):
    _, headers = make(registry)
    with gateway(tmp_path, None) as server:
        assert register(server, upstream, headers).status_code == 201
        _, brief = make(registry, lifetime_s=2.0)
        time.sleep(0.5)
        with dialed(server, brief) as wire:
            assert closing(wire, 5)[0] == 1008


def test_the_first_key_closes_sockets_without_one(tmp_path, registry, upstream):
    with gateway(tmp_path, upstream) as server, dialed(server, {}) as wire:
        make(registry)
        assert closing(wire, 5)[0] == 1008


def test_frames_count_as_requests_do(tmp_path, registry, upstream):
    _, headers = make(registry)
    with gateway(tmp_path, None, rate="30/minute") as server:
        assert register(server, upstream, headers).status_code == 201
        with dialed(server, headers) as wire:
            wire.recv()
            for number in range(60):
                wire.send(json.dumps({"id": number, "type": "reset", "data": {"seed": -1}}))
            answers = [json.loads(wire.recv(timeout=10)) for _ in range(60)]
        codes = [answer["data"]["code"] for answer in answers]
        assert codes.count("RATE_LIMITED") >= 30
        assert codes[0] == "BAD_REQUEST"
        assert [answer["id"] for answer in answers] == list(range(60))
        assert httpx.get(f"{server.url}/status", headers=headers).status_code == 429


def test_wrong_keys_are_limited_by_address(tmp_path, registry, monkeypatch):
    monkeypatch.setattr(auth, "WRONG_KEYS", "10/minute")
    _, headers = make(registry)
    with gateway(tmp_path, None) as server, httpx.Client(base_url=server.url) as http:
        wrong = [http.get("/status", headers={"X-API-Key": f"agk_{i:08x}_guess"}) for i in range(15)]
        assert [reply.status_code for reply in wrong] == [401] * 10 + [429] * 5
        assert int(wrong[-1].headers["Retry-After"]) >= 1
        assert http.get("/status", headers=headers).status_code == 200  # a right one is not


def test_one_key_does_not_take_all_sessions(tmp_path, registry, upstream):
    _, greedy = make(registry)
    _, modest = make(registry)
    with gateway(tmp_path, None, sessions_per_key=3, sessions_per_address=5) as server:
        assert register(server, upstream, greedy).status_code == 201

        def reset(headers: dict[str, str], number: int) -> httpx.Response:
            body = {"episode_id": f"{headers}{number}"[-80:], "index": 0}
            return httpx.post(f"{server.url}/envs/echo/reset", json=body, headers=headers, timeout=20)

        assert [reset(greedy, i).status_code for i in range(5)] == [200, 200, 200, 429, 429]
        refused = reset(greedy, 3).json()
        assert refused["code"] == "QUOTA_EXCEEDED"
        assert "--sessions-per-key" in refused["message"]
        assert reset(greedy, 0).status_code == 200  # asked again
        assert [reset(modest, i).status_code for i in range(3)] == [200, 200, 429]  # of the address
        session_id = reset(greedy, 0).json()["session_id"]
        body = {"session_id": session_id}
        assert httpx.post(f"{server.url}/envs/echo/close", json=body, headers=greedy).status_code == 200
        assert reset(modest, 2).status_code == 200


def test_a_closed_session_begun_again_counts(tmp_path, registry, upstream):
    _, headers = make(registry)
    with gateway(tmp_path, None, sessions_per_key=2) as server, httpx.Client(headers=headers, timeout=20) as http:
        assert register(server, upstream, headers).status_code == 201

        def reset(number: int) -> httpx.Response:
            return http.post(f"{server.url}/envs/echo/reset", json={"episode_id": f"again-{number}", "index": 0})

        for number in range(2):
            body = {"session_id": reset(number).json()["session_id"]}
            assert http.post(f"{server.url}/envs/echo/close", json=body).status_code == 200
        assert [reset(number).status_code for number in (2, 3)] == [200, 200]
        assert [reset(number).json().get("code") for number in (0, 1)] == ["QUOTA_EXCEEDED"] * 2
        assert reset(2).status_code == 200  # it is still there


def test_the_check_of_a_url_keeps_to_addresses_that_were_checked(tmp_path, registry, monkeypatch):
    """A name may lead elsewhere by the time of the check: nothing but `Destinations` looks it up."""
    _, headers = make(registry)
    original = Destinations.resolve

    async def resolve(self: Destinations, host: str, port: int) -> list[tuple[Any, ...]]:
        return await original(self, "127.0.0.1" if host == "env.invalid" else host, port)

    monkeypatch.setattr(Destinations, "resolve", resolve)
    with (
        serve_in_thread(create_app({"echo": EchoEnv}, hosts=["env.invalid"])) as url,
        gateway(tmp_path, None) as server,
    ):
        reply = register(server, f"http://env.invalid:{url.rpartition(':')[2]}", headers)
        assert reply.status_code == 201, reply.text


def foreign(requests: list[str] | None = None) -> FastAPI:
    """A server of OpenEnv's protocol that would take over whoever shows its pages."""
    app = FastAPI()

    @app.websocket("/ws")
    async def ws(socket: WebSocket) -> None:
        await socket.accept()
        while (await socket.receive())["type"] == "websocket.receive":
            await socket.send_text('{"type": "observation", "data": {"observation": {}}}')

    app.get("/health")(lambda: {"status": "healthy"})
    app.get("/metadata")(lambda: {"name": "theirs", "description": "an environment"})
    app.get("/schema")(lambda: {"action": {}, "observation": {}})

    @app.get("/{path:path}")
    def page(path: str) -> Response:
        if requests is not None:
            requests.append(path)
        kind = {"svg": "image/svg+xml", "xml": "text/xml", "odd": "text/html\x7f"}.get(path, "text/html")
        return Response(PAGE, headers={"content-type": kind, "set-cookie": "a=b", "location": "http://evil.example"})

    return app


@pytest.mark.parametrize("path", ["page", "svg", "xml", "web/index.html"])
def test_a_foreign_page_has_no_origin(tmp_path, path):
    with serve_in_thread(foreign()) as theirs, gateway(tmp_path, None) as server:
        assert register(server, theirs, {}, "theirs").status_code == 201
        reply = httpx.get(f"{server.url}/envs/theirs/{path}")
        assert reply.text == PAGE
        assert reply.headers["Content-Security-Policy"] == "sandbox"
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert not {"set-cookie", "location"} & set(reply.headers)


MALFORMED = [
    b"/../admin",
    b"/a/../../admin",
    b"/./a",
    b"/a/..",
    b"/%2e%2e/admin",
    b"/%2E%2E%2fadmin",
    b"/.%2e/admin",
    b"/%252e%252e/admin",
    b"/%25252e%25252e%25252fadmin",
    b"/..%5cadmin",
    b"/..\\admin",
    b"/..;/admin",
    b"/..%3bx=1/admin",
    b"/%20../admin",
    b"/.../admin",
    b"/a%0d%0aX-Injected:%20y",
    b"/a%0a",
    b"/a%00",
    b"/a%250d%250ab",
    b"/a%7f",
    b"/a%1b",
]


@pytest.mark.parametrize("path", [*MALFORMED, b"/a b", b"/a\rb", b"/a\nb", b"/a\x00b", b"/a\xffb", b"/a#b", b"/a\tb"])
def test_a_malformed_path_is_not_sent_on(path):
    with pytest.raises(MalformedTarget):
        target_of(path, b"")


@pytest.mark.parametrize("query", [b"a=b\r\nX: y", b"a=%0d%0ax", b"a b", b"\x00", b"a=%00"])
def test_a_malformed_query_is_not_sent_on(query):
    with pytest.raises(MalformedTarget):
        target_of(b"/a", query)


@pytest.mark.parametrize(
    "path", [b"/", b"/a%20b", b"/caf%C3%A9", b"/step%3Fadmin=1", b"/a.b/..c/d..", b"/a;b=c", b"//x"]
)
def test_other_paths_are_sent_on_as_they_are(path):
    assert target_of(path, b"q=%20%2F") == path.decode() + "?q=%20%2F"


def test_a_malformed_path_is_the_clients_error(tmp_path):
    requests: list[str] = []
    with serve_in_thread(foreign(requests)) as theirs, gateway(tmp_path, None) as server:
        assert register(server, theirs, {}, "theirs").status_code == 201
        for path in MALFORMED:
            with socket.create_connection(server.address, timeout=20) as raw:
                head = b"GET /envs/theirs%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path
                raw.sendall(head)
                answer = b"".join(iter(lambda: raw.recv(65536), b""))
            assert b" 400 " in answer[:20], (path, answer[:200])
        assert requests == []
        (replica,) = httpx.get(f"{server.url}/environments/theirs").json()["running"]
        assert replica["state"] == "ready"
        odd = httpx.get(f"{server.url}/envs/theirs/odd")
        assert odd.status_code < 500 or odd.json()["code"]


FORBIDDEN = [
    "169.254.169.254",
    "169.254.0.1",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a9fe:a9fe",
    "64:ff9b:1:a9fe:a9:fe00::",
    "::ffff:0:169.254.169.254",
    "2002:a9fe:a9fe::1",
    "::a9fe:a9fe",
    "fe80::1",
    "fe80::1%1",
    "fd00:ec2::254",
    "100.100.100.200",
    "168.63.129.16",
    "224.0.0.1",
    "255.255.255.255",
    "ff02::1",
]
PRIVATE = ["127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "192.168.1.1", "0.0.0.0", "::1", "::", "fd12::1"]
PRIVATE += ["fec0::1", "100.64.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1"]


@pytest.mark.parametrize("address", FORBIDDEN)
def test_metadata_addresses_are_never_reached(address):
    assert Destinations(private=True).refusal(address)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_reached_if_allowed(address):
    assert "--allow-private-urls" in str(Destinations(private=False).refusal(address))
    assert Destinations(private=True).refusal(address) is None


@pytest.mark.parametrize("address", ["93.184.215.14", "8.8.8.8", "2606:4700::1111"])
def test_public_addresses_are_reached(address):
    assert Destinations(private=False).refusal(address) is None


@pytest.mark.parametrize("host", ["2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "[fe80::1]"])
def test_other_spellings_of_an_address_are_read(host):
    with pytest.raises(AddressForbidden):
        asyncio.run(Destinations(private=True).resolve(host.strip("[]"), 80))


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest", "http://2852039166:80", "http://[::ffff:169.254.169.254]"]
)
def test_a_metadata_url_is_refused(tmp_path, url):
    with gateway(tmp_path, None) as server:
        reply = register(server, url, {})
        assert (reply.status_code, reply.json()["code"]) == (422, "ADDRESS_REFUSED"), reply.text


def test_a_private_url_is_refused_unless_allowed(tmp_path, upstream):
    with gateway(tmp_path, None, private_urls=False) as server:
        for url in (upstream, upstream.replace("127.0.0.1", "localhost")):
            reply = register(server, url, {})
            assert (reply.status_code, reply.json()["code"]) == (422, "ADDRESS_REFUSED")
            assert "--allow-private-urls" in reply.json()["message"]


@contextlib.contextmanager
def endless(head: bytes, total_mb: int) -> Iterator[str]:
    """A server whose every reply is that long."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                request = connection.recv(65536)
                if b"/health" in request:
                    body = b'{"status": "healthy"}'
                    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 21\r\n\r\n" + body)
                    continue
                connection.sendall(head)
                for _ in range(total_mb):
                    connection.sendall(b" " * 2**20)

    threading.Thread(target=serve, daemon=True).start()
    with contextlib.closing(listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 419430400\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n19000000\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: ",
    ],
)
def test_an_upstream_without_end_is_not_read_further(tmp_path, resident_mb, head):
    with endless(head, 400) as url, gateway(tmp_path, None) as server:
        before = resident_mb()
        reply = register(server, url, {})
        assert (reply.status_code, reply.json()["code"]) == (502, "ENVIRONMENT_UNREACHABLE"), reply.text
        assert resident_mb() - before < 64


def test_a_redirect_leads_nowhere(tmp_path):
    """A server that sends the gateway elsewhere."""
    head = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"
    with endless(head, 0) as url, gateway(tmp_path, None) as server:
        assert register(server, url, {}).json()["code"] == "ENVIRONMENT_UNREACHABLE"


def test_a_name_that_moves_is_checked_at_every_connection(monkeypatch):
    """A name leads to the environment's server when it is checked, and to another one afterwards (DNS rebinding)."""
    own = env_server(hosts=["moves.example"])
    with own as server, socket.create_server(("127.0.0.3", 0)) as elsewhere:
        port = elsewhere.getsockname()[1]
        answers = iter([("127.0.0.1", server.address[1])])

        def lookup(host: str, *_: Any, **__: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", next(answers, ("127.0.0.3", port)))]

        class Two(Destinations):
            def refusal(self, text: str) -> str | None:
                return "elsewhere" if text == "127.0.0.3" else None

        async def play() -> None:
            client = ReplicaClient(f"http://moves.example:{server.address[1]}", Two(private=True))
            monkeypatch.setattr(socket, "getaddrinfo", lookup)
            step = json.dumps({"session_id": "none", "action": {"text": "a"}, "step": 0}).encode()
            with pytest.raises(EnvironmentFailure, match="session"):
                await client.step(step, 5.0, repeatable=True)
            await client.close()

        asyncio.run(play())
        elsewhere.settimeout(0.2)
        with pytest.raises(TimeoutError):
            elsewhere.accept()


def test_a_frame_without_end_is_not_read_further():
    app = FastAPI()

    @app.websocket("/ws")
    async def endless_answer(wire: WebSocket) -> None:
        await wire.accept()
        await wire.send_json({"type": "hello", "data": {"protocol": "1", "max_frame_bytes": 2**20}})
        await wire.receive_text()
        await wire.send_text(" " * (MAX_REPLY + 2**20))

    async def play(url: str) -> None:
        client = ReplicaClient(url)
        try:
            with pytest.raises(EnvironmentFailure, match="exceeds limit"):
                await client.step(b'{"session_id": "s", "action": "a", "step": 0}', 5.0, repeatable=False)
        finally:
            await client.close()

    with serve_in_thread(app) as url:
        asyncio.run(play(url))


@pytest.mark.parametrize("session", ["", ".", "..", "/", "../../metrics", "a/b", "//evil.example", "%2e%2e/health"])
def test_a_session_id_that_is_a_path_is_an_unknown_one(tmp_path, upstream, session):
    with gateway(tmp_path, upstream) as server:
        for verb in ("reset", "step", "close", "solver"):
            body = {"session_id": session, **({"action": {"text": "a"}} if verb == "step" else {})}
            reply = httpx.post(f"{server.url}/envs/echo/{verb}", json=body)
            assert (reply.status_code, reply.json()["code"]) == (404, "UNKNOWN_SESSION"), reply.text
