from __future__ import annotations

import asyncio
import json
import os
import resource
import sqlite3
import threading
import time
from pathlib import Path

import httpx
import pytest

from agentgym.clients.client import EnvClient
from agentgym.errors import ConfigError, MissingDependency
from agentgym.testing import EchoEnv
from agentgym_environments.backends.sandbox import backends
from agentgym_servers.gateway import database as registry_module
from agentgym_servers.gateway.database import RegistrationStore
from agentgym_servers.gateway.errors import DatabaseUnavailable

from .conftest import ECHO, children_of, env_server, eventually, gateway_process, running

STOCK = Path(__file__).parents[3] / "environments" / "agentgym_environments" / "benchmarks" / "mcp" / "stock"
"""Folder of a tool server."""


async def play(url: str) -> float:
    """The reward of a solver's episode."""
    async with EnvClient(url) as client:
        session = client.session()
        step = await session.reset(options={"task": 1})
        while not (step.terminated or step.truncated):
            step = await session.step(await session.solver())
        await session.close()
        return step.reward


def test_an_env_by_url_is_registered_played_and_removed(gateway):
    with env_server(echo=EchoEnv) as server:
        reply = gateway.register("words", url=server)
        assert (reply.status_code, reply.json()["state"], reply.json()["spec"]["id"]) == (201, "live", "echo")
        assert asyncio.run(play(f"{gateway.url}/envs/words")) == 1.0
        assert [env["name"] for env in gateway.http.get("/environments").json()["environments"]] == ["words"]
        assert gateway.http.get("/envs/words/metadata").json()["agentgym"]["spec"]["id"] == "echo"
        assert gateway.http.get("/envs/words/health").json()["status"] == "healthy"
        removed = gateway.http.delete("/environments/words").json()
        assert removed == {"name": "words", "removed": True, "sessions_lost": 0}
        assert gateway.http.get("/environments/words").json()["code"] == "UNKNOWN_ENVIRONMENT"
        assert gateway.http.post("/envs/words/reset", json={}).status_code == 404
        assert gateway.http.get("/environments").json() == {"environments": []}
        assert gateway.registry.envs() == []
        assert gateway.register("words", url=server).status_code == 201


@pytest.fixture
def others() -> set[int]:
    """Processes that tests before have left, as of a pool."""
    return set(running(children_of(os.getpid())))


def test_an_entry_point_env_is_a_child_that_ends_with_it(others, gateway):
    assert gateway.register("words", entry_point=ECHO).status_code == 201
    assert len(set(running(children_of(os.getpid()))) - others) == 1
    assert asyncio.run(play(f"{gateway.url}/envs/words")) == 1.0
    assert "agentgym_gateway_seconds_count" in gateway.http.get("/metrics").text
    assert gateway.http.delete("/environments/words").status_code == 200
    assert set(running(children_of(os.getpid()))) <= others


def test_a_file_of_questions_is_an_environment(gateway, tmp_path):
    path = tmp_path / "questions.jsonl"
    records = [{"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"} for n in range(4)]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    reply = gateway.register("sums", tasks=str(path), engine="qa")
    assert reply.status_code == 201, reply.text
    assert reply.json()["kind"] == "tasks"
    assert reply.json()["spec"]["splits"] == {"test": 4}
    assert asyncio.run(answer_of(f"{gateway.url}/envs/sums", "4")) == 1.0
    assert gateway.http.delete("/environments/sums").status_code == 200


def test_a_file_of_programming_tasks_is_an_environment(gateway, tmp_path):
    backends.choose("auto")  # skips where no sandbox works
    path = tmp_path / "mbpp.jsonl"
    records = [
        {
            "task_id": 11 + n,
            "text": f"Write a function to add {n}.",
            "code": f"def add(x):\n    return x + {n}",
            "test_list": [f"assert add({m}) == {m + n}" for m in (1, 5, 8)],
        }
        for n in range(4)
    ]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    reply = gateway.register("sums", tasks=str(path), engine="code")
    assert reply.status_code == 201, reply.text
    assert reply.json()["spec"]["splits"] == {"test": 4}
    assert asyncio.run(answer_of(f"{gateway.url}/envs/sums", "def add(x): return x + 2")) == 1.0
    assert asyncio.run(answer_of(f"{gateway.url}/envs/sums", "def add(x): return x")) == 0.0
    assert gateway.http.delete("/environments/sums").status_code == 200
    records[0]["code"] = "def add(x):\n    return x - 1"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    reply = gateway.register("sums", tasks=str(path), engine="code")
    assert reply.status_code == 422
    assert "11 is not played: its solution does not pass its tests" in reply.text


async def answer_of(url: str, answer: str) -> float:
    """Reward of an answer to the third task."""
    async with EnvClient(url) as client:
        session = client.session()
        await session.reset(options={"split": "test", "task": 2})
        step = await session.step(answer)
        await session.close()
        return step.reward


def test_tasks_for_a_tool_server_are_an_environment(others, gateway, tmp_path):
    if problem := backends.bubblewrap_problem():
        raise MissingDependency(problem)
    record = {
        "instruction": "Which shelf is empty, if any? Answer no if none is.",
        "server": {"folders": [str(STOCK)]},
        "checker": [
            {"kind": "answer", "normalized": "no"},
            {"kind": "calls", "calls": [{"name": "list_items"}]},
        ],
        "solution": {"calls": [{"name": "list_items", "arguments": {"page": 1}}], "answer": "no"},
    }
    path = tmp_path / "tasks.jsonl"
    path.write_text(f"{json.dumps(record)}\n" * 2)
    refused = tmp_path / "refused.jsonl"
    refused.write_text(json.dumps({**record, "checker": {"kind": "answer", "regex": ".*"}}))
    reply = gateway.register("stock", tasks=str(refused), mcp="python stock.py 'a b'")
    assert (reply.status_code, reply.json()["code"]) == (422, "NOT_STARTED")
    assert "task 0: doing nothing scores 1" in reply.json()["message"]
    reply = gateway.register("stock", tasks=str(path), mcp="python stock.py 'a b'")
    assert reply.status_code == 201, reply.text
    spec = reply.json()["spec"]
    assert [tool["name"] for tool in spec["tools"]][:3] == ["finish", "list_items", "get_item"]
    assert asyncio.run(play(f"{gateway.url}/envs/stock")) == 1.0
    assert gateway.http.delete("/environments/stock").status_code == 200
    assert set(running(children_of(os.getpid()))) <= others


@pytest.mark.parametrize(
    ("body", "status", "code", "message"),
    [
        ({"entry_point": "no-such-env"}, 422, "NOT_STARTED", "no environment is called 'no-such-env'"),
        ({"entry_point": ECHO, "startup_s": 0.01}, 422, "NOT_STARTED", "did not answer within 0.01 s"),
        ({"url": "http://127.0.0.1:1"}, 502, "ENVIRONMENT_UNREACHABLE", "refused"),
        ({"entry_point": ECHO, "url": "http://127.0.0.1:1"}, 422, "BAD_REQUEST", "exactly one of"),
        ({}, 422, "BAD_REQUEST", "exactly one of"),
        ({"url": "ftp://somewhere"}, 422, "BAD_REQUEST", "http://host:port"),
        ({"url": "http://me:secret@127.0.0.1"}, 422, "BAD_REQUEST", "must not hold a user or a password"),
        ({"entry_point": "--host"}, 422, "BAD_REQUEST", "entry_point"),
        ({"entry_point": ECHO, "limits": {"memory_mb": 64}}, 422, "BAD_REQUEST", "limits apply to containers"),
        ({"entry_point": ECHO, "replicas": {"min": 3, "max": 2}}, 422, "BAD_REQUEST", "replicas.min is 3"),
        ({"url": "http://127.0.0.1:1", "replicas": {"max": 2}}, 422, "BAD_REQUEST", "leave out `replicas`"),
        ({"tasks": "x.jsonl"}, 422, "BAD_REQUEST", "tasks and engine go together"),
        ({"entry_point": ECHO, "engine": "qa"}, 422, "BAD_REQUEST", "tasks and engine go together"),
        ({"tasks": "x.jsonl,context=true", "engine": "qa"}, 422, "BAD_REQUEST", "tasks"),
        ({"tasks": "none.jsonl", "engine": "qa"}, 422, "NOT_STARTED", "there is no file none.jsonl"),
        ({"mcp": "python x.py"}, 422, "BAD_REQUEST", "exactly one of"),
        ({"entry_point": ECHO, "mcp": "python x.py"}, 422, "BAD_REQUEST", "or tasks and mcp"),
        ({"tasks": "x.jsonl", "engine": "qa", "mcp": "python"}, 422, "BAD_REQUEST", "or tasks and mcp"),
        ({"tasks": "x.jsonl", "mcp": "python x,y"}, 422, "BAD_REQUEST", "mcp"),
        ({"tasks": "x.jsonl", "mcp": "http://me:secret@127.0.0.1"}, 422, "BAD_REQUEST", "mcp must not hold a user"),
        ({"tasks": "x.jsonl", "mcp": "http://169.254.169.254/mcp"}, 422, "ADDRESS_REFUSED", "169.254"),
        ({"tasks": "none.jsonl", "mcp": "python x.py"}, 422, "NOT_STARTED", "there is no file none.jsonl"),
        ({"harbor": "/none"}, 422, "NOT_STARTED", "there is no folder /none"),
        ({"url": "http://127.0.0.1:1", "colour": "red"}, 422, "BAD_REQUEST", "colour"),
    ],
)
def test_what_cannot_be_registered_says_why_and_leaves_nothing(others, gateway, body, status, code, message):
    reply = gateway.register("words", **body)
    assert (reply.status_code, reply.json()["code"]) == (status, code)
    assert message in reply.json()["message"]
    assert gateway.registry.envs() == []
    assert gateway.http.get("/environments").json() == {"environments": []}
    assert set(running(children_of(os.getpid()))) <= others


def test_a_failed_check_lists_the_broken_rules(gateway):
    def broken() -> EchoEnv:
        return EchoEnv(garbage_at=0, garbage="reward")

    with env_server(echo=broken) as server:
        reply = gateway.register("words", url=server)
        assert (reply.status_code, reply.json()["code"]) == (422, "CHECK_FAILED")
        assert "step_returns_five" in reply.json()["message"]
        assert gateway.registry.envs() == []


def test_a_name_is_given_once_also_while_its_check_runs(gateway):
    with env_server(echo=lambda: EchoEnv(latency_s=0.01)) as server:
        replies = []
        racers = [
            threading.Thread(target=lambda: replies.append(gateway.register("words", url=server))) for _ in range(4)
        ]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert sorted(reply.status_code for reply in replies) == [201, 409, 409, 409]
        refused = next(reply.json() for reply in replies if reply.status_code == 409)
        assert refused["code"] == "DUPLICATE_NAME"
        assert len(gateway.registry.envs()) == 1


def test_a_gateway_killed_during_a_check_leaves_nothing(tmp_path):
    database = f"sqlite:///{tmp_path / 'gateway.db'}"
    with gateway_process(database) as gateway:

        def ask() -> None:
            with pytest.raises(httpx.RemoteProtocolError):
                gateway.register("words", entry_point=ECHO, check_tasks=1000)

        asking = threading.Thread(target=ask)
        asking.start()
        children = eventually(lambda: children_of(gateway.process.pid))
        eventually(lambda: gateway.http.get("/status").json()["registering"])
        gateway.process.kill()
        asking.join()
    registry = RegistrationStore(database)
    assert registry.envs() == []
    registry.close()
    eventually(lambda: not running(children))


def test_a_full_disk_is_a_typed_error_and_loses_nothing(tmp_path):
    with env_server(echo=EchoEnv) as server, gateway_process(f"sqlite:///{tmp_path / 'gateway.db'}") as gateway:
        assert gateway.register("before", url=server).status_code == 201
        resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
        reply = gateway.register("words", url=server)
        assert (reply.status_code, reply.json()["code"]) == (503, "DATABASE_UNAVAILABLE")
        assert gateway.http.delete("/environments/before").json()["code"] == "DATABASE_UNAVAILABLE"
        gateway.begin("before")
        resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert gateway.register("words", url=server).status_code == 201
        names = [env["name"] for env in gateway.http.get("/environments").json()["environments"]]
        assert names == ["before", "words"]


def test_a_locked_or_corrupt_database_is_a_typed_error(tmp_path, monkeypatch):
    monkeypatch.setattr(registry_module, "LOCKED_S", 0.1)
    file = tmp_path / "gateway.db"
    registry = RegistrationStore(f"sqlite:///{file}")
    registry.lock()
    with pytest.raises(ConfigError, match="another gateway"):
        RegistrationStore(f"sqlite:///{file}").lock()
    other = sqlite3.connect(file)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(DatabaseUnavailable, match="locked"):
        registry.envs()
    other.close()
    assert registry.envs() == []
    registry.close()
    file.write_bytes(b"this is no database" * 1000)
    with pytest.raises(DatabaseUnavailable, match="not a database"):
        RegistrationStore(f"sqlite:///{file}")
    with pytest.raises(DatabaseUnavailable, match="cannot be opened"):
        RegistrationStore(f"sqlite:///{tmp_path / 'absent' / 'gateway.db'}")
    with pytest.raises(ConfigError, match="no database URL"):
        RegistrationStore("somewhere")


def test_environments_of_one_server_count_own_sessions(gateway):
    with env_server(one=EchoEnv, other=EchoEnv, options={"max_sessions": 6}) as server:
        for name in ("one", "other"):
            assert gateway.register(name, url=f"{server}/envs/{name}").status_code == 201

        def counts() -> list[int]:
            envs = gateway.http.get("/status").json()["envs"]
            return [env["running"][0]["sessions"] for env in envs]

        sessions = [gateway.begin("one", index=index) for index in range(5)]
        own = httpx.get(f"{server}/envs/other/health").json()
        assert (own["sessions"], own["env_sessions"], own["max_sessions"]) == (5, 0, 6)
        time.sleep(0.5)  # several looks at the server's health
        assert counts() == [5, 0]
        last = gateway.begin("other")
        full = gateway.http.post("/envs/other/reset", json={"episode_id": "one too many"})
        assert full.json()["code"] == "CAPACITY_REACHED"  # the server's places are shared
        assert counts() == [5, 1]
        for name, session in [*(("one", session) for session in sessions), ("other", last)]:
            gateway.close(name, session)
        eventually(lambda: counts() == [0, 0])


def test_a_registration_without_a_source_says_what_to_give(gateway):
    message = gateway.register("words").json()["message"]
    assert (
        message == "the request is not valid: give exactly one of url, image, entry_point, tasks and harbor, not none"
    )
