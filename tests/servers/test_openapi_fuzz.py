"""Every endpoint, asked for what its schema allows and for what it forbids, answers in kind, and no secret is told."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from agentgym.errors import AgentGymError
from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.gateway.app import create_gateway
from agentgym_servers.gateway.auth import SCOPES, new_key
from agentgym_servers.gateway.database import RegistrationStore
from agentgym_servers.web.run import serve_in_thread

EXAMPLES = 10
"""Of each operation."""
REFUSALS = (400, 401, 403, 404, 405, 409, 410, 413, 422, 429)
EXPECTED = {"CAPACITY_REACHED": 503, "DEADLINE_EXCEEDED": 504, "ENVIRONMENT_UNREACHABLE": 502}
"""What a server may say of itself; any other status of 500 and more is a defect."""
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),  # without shrinking: a reply says what was wrong
)
CLOSED = "http://127.0.0.1:9"
"""Where nothing listens."""


@pytest.fixture(scope="module")
def env() -> Iterator[str]:
    """A server of an environment that runs inline and of one in threads."""
    with serve_in_thread(create_app({"echo": EchoEnv, "threaded": lambda: EchoEnv(inline=False)}, lease_s=30)) as url:
        yield url


@pytest.fixture(scope="module")
def gateway(env: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, list[str]]]:
    """A gateway of that environment: its URL, a key, and what must never be told."""
    registry = RegistrationStore(f"sqlite:///{tmp_path_factory.mktemp('gateway') / 'gateway.db'}")
    with contextlib.closing(registry):
        key, secret = new_key("fuzzer", SCOPES)
        registry.add_key(key)
        with serve_in_thread(create_gateway(registry)) as url:
            headers = {"Authorization": f"Bearer {secret}"}
            body = {"name": "echo", "url": f"{env}/envs/echo", "check_tasks": 1}
            assert httpx.post(f"{url}/environments", json=body, headers=headers, timeout=60).status_code == 201
            yield url, secret, [secret, secret.split("_", 2)[2], key.digest]


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client() as client:
        yield client


def fuzz(url: str, envs: list[str], headers: dict[str, str], check: Callable[[Any], None]) -> None:
    """Ask every operation that the server describes, half of the time in a session that there is."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=headers)
    with httpx.Client(base_url=url, headers=headers) as http:
        sessions = {name: begin(http, name) for name in envs}
        operations = [found.ok() for found in schema.get_all_operations()]
        paths = {operation.path for operation in operations}
        for operation in operations:
            if f"/envs/{{name}}{operation.path}" in paths:  # the same handler as at the root
                continue
            cases = [operation.as_strategy(generation_mode=GenerationMode.POSITIVE)]
            if operation.body or operation.path_parameters or operation.query:
                cases.append(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))

            @SETTINGS
            @given(case=st.one_of(cases), name=st.sampled_from(envs), known=st.booleans())
            def ask(case: Any, name: str, known: bool) -> None:
                if known:
                    sessions[name] = settle(http, name, sessions[name])
                    place(case, name, sessions[name])
                restrain(case)
                reply = case.call(base_url=url, headers=headers, timeout=20)
                check(reply)

            ask()
        assert http.get("/health").json()["status"] == "healthy"
        for name in envs:
            begin(http, name)


def begin(http: httpx.Client, name: str) -> str:
    reply = http.post(f"/envs/{name}/reset", json={"seed": 1})
    assert reply.status_code == 200, reply.text
    return reply.json()["session_id"]


def settle(http: httpx.Client, name: str, session_id: str) -> str:
    """A session that there is: the one before, unless it was closed."""
    alive = http.get(f"/envs/{name}/sessions/{session_id}").status_code == 200
    return session_id if alive else begin(http, name)


def place(case: Any, name: str, session_id: str) -> None:
    """Turn the case to an environment and session that there are, unless it would remove the environment."""
    if case.method == "DELETE":
        return
    for key, value in {"name": name, "env": name, "session_id": session_id}.items():
        if key in (case.path_parameters or {}):
            case.path_parameters[key] = value
    bodies = [case.body, *(case.body.get("steps") or [])] if isinstance(case.body, dict) else []
    for body in bodies:
        if isinstance(body, dict) and "session_id" in body:
            body["session_id"] = session_id


def restrain(case: Any) -> None:
    """No registration reaches beyond this machine, starts a process or waits long."""
    if not isinstance(case.body, dict):
        return
    for wait in ("queue_s", "wait_s", "drain_s"):
        if isinstance(case.body.get(wait), int | float):
            case.body[wait] = min(case.body[wait], 0.05)
    if case.path == "/environments":
        for source in ("image", "entry_point"):
            case.body.pop(source, None)
        if isinstance(case.body.get("url"), str):
            case.body["url"] = CLOSED


def typed(reply: Any) -> None:
    """A failure is a WireError, and none is a defect of the server."""
    if reply.status_code < 400:
        return
    answer = json.loads(reply.text)
    assert answer["code"], reply.text
    assert answer["message"], reply.text
    assert answer["code"] != "INTERNAL_ERROR", reply.text
    assert "Traceback" not in reply.text
    expected = reply.status_code in REFUSALS or EXPECTED.get(answer["code"]) == reply.status_code
    assert expected, (reply.status_code, reply.text)


def test_every_endpoint_of_an_environment_server(env):
    fuzz(env, ["echo", "threaded"], {}, typed)


def test_every_endpoint_of_a_gateway(gateway):
    url, secret, secrets = gateway

    def check(reply: Any) -> None:
        typed(reply)
        text = f"{reply.text} {reply.headers}"
        assert not any(one in text for one in secrets)

    fuzz(url, ["echo"], {"Authorization": f"Bearer {secret}"}, check)


@given(scheme=st.sampled_from(["Bearer", "bearer", "Basic", "x"]), cut=st.integers(0, 54), path=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_a_nearly_right_key_is_refused_and_not_echoed(gateway, http, scheme, cut, path):
    url, secret, secrets = gateway
    nearly = secret[:cut] + secret[cut + 1 :]
    target = ["/environments", "/envs", "/status", "/envs/echo/metadata"][path]
    reply = http.get(url + target, headers={"Authorization": f"{scheme} {nearly}"})
    assert (reply.status_code, reply.json()["code"]) == (401, "WRONG_KEY")
    assert nearly[-20:] not in f"{reply.text} {reply.headers}"
    assert not any(one in reply.text for one in secrets)


@pytest.mark.parametrize("url", ["postgresql://me:{}@127.0.0.1:9/x", "postgresql://me:{}@[bad/x", "no://me:{}@x/y"])
def test_a_database_that_fails_does_not_tell_its_password(url):
    with pytest.raises(AgentGymError) as raised:
        RegistrationStore(url.format("sEcReT"))
    assert "sEcReT" not in str(raised.value)
