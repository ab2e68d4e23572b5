from __future__ import annotations

import asyncio
import contextvars
import time

import httpx
import pytest
import websockets.sync.client
from websockets.exceptions import InvalidStatus

from agentgym.clients.client import EnvClient, use_key
from agentgym.errors import ConfigError, MissingScope, UsageError, WrongKey
from agentgym.testing import EchoEnv
from agentgym_servers.gateway import auth
from agentgym_servers.gateway.app import create_gateway, run_gateway
from agentgym_servers.gateway.auth import new_key
from agentgym_servers.gateway.database import RegistrationStore

from .conftest import env_server, eventually, gateway_in_thread


def make(registry: RegistrationStore, *scopes: str, lifetime_s: float | None = None) -> tuple[str, dict[str, str]]:
    """A key's id, and the headers that carry it."""
    key, secret = new_key("test", scopes, lifetime_s)
    registry.add_key(key)
    return key.id, {"Authorization": f"Bearer {secret}"}


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """Of the gateway that `gateway_in_thread(tmp_path)` starts."""
    monkeypatch.setattr(auth, "REFRESH_S", 0.05)
    found = RegistrationStore(f"sqlite:///{tmp_path / 'gateway.db'}")
    yield found
    found.close()


def test_without_keys_only_this_machine_is_let_in(gateway):
    ask = gateway.http.get
    assert ask("/environments").status_code == 200
    assert ask("/environments", headers={"Host": "evil.example:80"}).json()["code"] == "WRONG_HOST"
    assert ask("/environments", headers={"Host": "[x"}).status_code in (400, 421)
    for origin, status in (("http://evil.example", 403), ("null", 403), (gateway.url, 422)):
        assert gateway.http.post("/environments", json={}, headers={"Origin": origin}).status_code == status
    with pytest.raises(InvalidStatus, match="403"):
        websockets.sync.client.connect(f"ws{gateway.url[4:]}/envs/x/ws", origin="http://evil.example", proxy=None)


def test_nobody_listens_beyond_this_machine_without_a_key(tmp_path):
    with pytest.raises(ConfigError, match=r"not on 0\.0\.0\.0: make a key first"):
        run_gateway(f"sqlite:///{tmp_path / 'gateway.db'}", "0.0.0.0", 0)


def test_a_key_opens_what_its_scopes_say(tmp_path, registry):
    _, register = make(registry, "register")
    _, run = make(registry, "run")
    _, read = make(registry, "read")
    with env_server(echo=EchoEnv) as server, gateway_in_thread(tmp_path) as gateway:

        def status(method: str, path: str, headers: dict[str, str] | None = None, **more: object) -> int:
            return gateway.http.request(method, path, headers=headers, **more).status_code

        body = {"name": "words", "url": server, "check_tasks": 1}
        for path, method in (("/environments", "GET"), ("/status", "GET"), ("/metrics", "GET"), ("/envs", "GET")):
            assert status(method, path) == 401
        assert [status("POST", "/environments", one, json=body) for one in ({}, run, read)] == [401, 403, 403]
        assert status("POST", "/environments", register, json=body) == 201
        assert [status("GET", "/environments", one) for one in ({}, register, run, read)] == [401, 403, 403, 200]
        assert [status("POST", "/envs/words/reset", one) for one in ({}, register, read)] == [401, 403, 403]
        assert status("POST", "/envs/words/reset", run, json={}) == 200
        assert status("DELETE", "/environments/words", run) == 403
        by_other_header = {"X-API-Key": read["Authorization"].removeprefix("Bearer ")}
        assert status("GET", "/status", by_other_header) == 200
        assert status("GET", "/") == 200  # the page, which has to ask for a key
        assert status("GET", "/health") == 200
        missing = gateway.http.get("/status").json()
        assert missing["code"] == "WRONG_KEY"
        assert "Authorization: Bearer" in missing["message"]
        assert "lacks the scope 'read'" in gateway.http.get("/status", headers=run).json()["message"]


@pytest.mark.parametrize("wrong", ["", "x", "agk_", "agk__", "agk_00000000_guess", "a" * 5_000, "agk_é_x"])
def test_a_wrong_key_is_refused_and_not_repeated(tmp_path, registry, wrong):
    make(registry, "read")
    with gateway_in_thread(tmp_path) as gateway:
        reply = gateway.http.get("/status", headers={"X-API-Key": wrong.encode()})
        assert (reply.status_code, reply.json()["code"]) == (401, "WRONG_KEY")
        assert len(wrong) < 5 or wrong not in reply.text


def test_a_guessed_secret_of_a_known_key_is_refused(tmp_path, registry):
    key_id, headers = make(registry, "read")
    with gateway_in_thread(tmp_path) as gateway:
        assert gateway.http.get("/status", headers=headers).status_code == 200
        headers["Authorization"] = headers["Authorization"][:-1] + "_"
        assert gateway.http.get("/status", headers=headers).status_code == 401
        assert gateway.http.get("/status", headers={"X-API-Key": f"agk_{key_id}_"}).status_code == 401


def test_a_revoked_and_an_expired_key_stop_working(tmp_path, registry):
    key_id, headers = make(registry, "read")
    _, brief = make(registry, "read", lifetime_s=0.5)
    made = time.monotonic()
    with gateway_in_thread(tmp_path) as gateway:
        assert gateway.http.get("/status", headers=headers).status_code == 200
        assert registry.revoke_key(key_id)
        assert not registry.revoke_key(key_id)
        eventually(lambda: gateway.http.get("/status", headers=headers).status_code == 401)
        time.sleep(max(0, made + 0.5 - time.monotonic()))
        assert gateway.http.get("/status", headers=brief).status_code == 401
        assert gateway.http.get("/status").status_code == 401  # it does not open again to everybody


def test_the_first_key_closes_a_running_gateway(tmp_path, registry):
    with gateway_in_thread(tmp_path) as gateway:
        assert gateway.http.get("/status").json()["open"]
        make(registry, "read")
        eventually(lambda: gateway.http.get("/status").status_code == 401)


def test_a_key_may_ask_so_often(tmp_path, registry):
    _, headers = make(registry, "read")
    _, other = make(registry, "read")
    with gateway_in_thread(tmp_path, rate="5/minute") as gateway:
        replies = [gateway.http.get("/status", headers=headers) for _ in range(7)]
        assert [reply.status_code for reply in replies] == [200] * 5 + [429] * 2
        assert 1 <= int(replies[-1].headers["Retry-After"]) <= 61
        assert (replies[-1].json()["code"], replies[-1].json()["retryable"]) == ("RATE_LIMITED", True)
        assert gateway.http.get("/status", headers=other).status_code == 200
    with pytest.raises(ConfigError, match="1000/second"):
        create_gateway(registry, rate="often")


def test_a_secret_is_kept_nowhere(tmp_path, registry, caplog):
    _, headers = make(registry, "register", "run", "read")
    secret = headers["Authorization"].removeprefix("Bearer ")
    assert len(secret.split("_", 2)[2]) == 43  # 256 bits
    with gateway_in_thread(tmp_path) as gateway:
        for request in (("GET", "/status"), ("POST", "/environments"), ("GET", "/environments/x"), ("GET", "/nothing")):
            reply = httpx.request(request[0], gateway.url + request[1], headers=headers)
            assert secret not in reply.text
    assert secret not in caplog.text
    kept = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert secret.encode() not in kept
    with pytest.raises(ConfigError, match="register, run, read"):
        new_key("test", ["everything"])


@pytest.mark.parametrize("wire", ["http", "socket"])
def test_the_client_sends_its_key(tmp_path, registry, wire):
    _, headers = make(registry, "register")
    key, secret = new_key("test", ["run"])
    registry.add_key(key)

    async def play(url: str, **options: str) -> str:
        async with EnvClient(url, wire=wire, **options) as client:
            return str((await client.session().reset(options={"task": 0})).observation)

    with env_server(echo=EchoEnv) as server, gateway_in_thread(tmp_path) as gateway:
        body = {"name": "words", "url": server, "check_tasks": 1}
        assert gateway.http.post("/environments", json=body, headers=headers).status_code == 201
        url = f"{gateway.url}/envs/words"
        assert "Say: apple" in asyncio.run(play(url, key=secret))
        with pytest.raises(WrongKey, match=r"needs an API key: pass key=\.\.\. in Python.*AGENTGYM_KEY"):
            asyncio.run(play(url))
        with pytest.raises(MissingScope, match="lacks the scope 'run'"):
            asyncio.run(play(url, key=headers["Authorization"].removeprefix("Bearer ")))

        def with_default() -> str:
            use_key(secret)
            return asyncio.run(play(url))

        assert "Say: apple" in contextvars.copy_context().run(with_default)
    with pytest.raises(UsageError, match="printable"):
        EnvClient("http://127.0.0.1:1", key="a\r\nb: c")
