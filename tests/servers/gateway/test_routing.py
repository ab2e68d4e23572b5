from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time

import pytest
import websockets.sync.client

from agentgym.clients.client import EnvClient
from agentgym.testing import EchoEnv
from agentgym_servers.env_server.attachments import Attachments
from agentgym_servers.gateway.backend import GatewayBackend

from .conftest import ECHO, Api, children_of, env_server, eventually, gateway_process

TWO = {"entry_point": ECHO, "replicas": {"min": 2, "max": 2}, "max_sessions": 2, "startup_s": 60}


def ready(gateway: Api, name: str, count: int) -> list[dict]:
    """The replicas, once so many are ready."""

    def found() -> list[dict]:
        running = gateway.env(name)["running"]
        return running if [replica["state"] for replica in running] == ["ready"] * count else []

    return eventually(found)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One gateway with an environment of two replicas, two sessions each."""
    database = tmp_path_factory.mktemp("gateway") / "gateway.db"
    with gateway_process(f"sqlite:///{database}") as gateway:
        reply = gateway.register("words", **TWO)
        assert reply.status_code == 201, reply.text
        ready(gateway, "words", 2)
        yield gateway


def test_sessions_stay_with_their_replica_and_fill_all(shared):
    sessions = [shared.begin("words", index=index) for index in range(4)]
    assert {replica["sessions"] for replica in shared.env("words")["running"]} == {2}
    words = [shared.step("words", session, "wrong")[1]["info"]["state_key"] for session in sessions]
    assert words == [f"train/{index}:0" for index in range(4)]
    body = {"steps": [{"session_id": one, "action": {"text": "apple"}, "step": 1} for one in sessions], "wait_for": 4}
    results = shared.http.post("/envs/words/step_many", json=body).json()["results"]
    assert [result["info"]["valid_action"] for result in results] == [True, True, True, True]
    assert [result["session_id"] for result in results] == sessions
    again = shared.http.post("/envs/words/step_many", json=body).json()["results"]
    assert [one["observation"] for one in again] == [one["observation"] for one in results]
    assert {one["step"] for one in again} == {2}
    refused = shared.http.post("/envs/words/reset", json={})
    assert (refused.status_code, refused.json()["code"]) == (503, "CAPACITY_REACHED")
    assert int(refused.headers["Retry-After"]) >= 1
    lookup = shared.http.get(f"/envs/words/sessions/{sessions[3]}").json()
    assert (lookup["step"], lookup["session_id"]) == (2, sessions[3])
    assert shared.http.get(f"/envs/words/state?session_id={sessions[0]}").json()["step_count"] == 2
    for session in sessions:
        shared.close("words", session)
        shared.close("words", session)  # asking twice is no mistake
    assert shared.step("words", sessions[0])[0] == 410
    assert shared.step("words", "nobody")[0] == 404


def test_a_repeated_reset_is_one_session(shared):
    body = {"index": 3, "seed": 1, "episode_id": "once"}
    first = shared.begin("words", **body)
    assert shared.begin("words", **body) == first
    found = []
    racers = [threading.Thread(target=lambda: found.append(shared.begin("words", episode_id="race"))) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert len(set(found)) == 1
    for session in (first, found[0]):
        shared.close("words", session)


def test_a_session_waits_for_room_first_come_first_served(shared):
    sessions = [shared.begin("words") for _ in range(4)]
    served: list[int] = []

    def wait(number: int) -> None:
        session = shared.begin("words", queue_s=20)
        served.append(number)
        shared.close("words", session)

    waiting = []
    for number in range(3):
        waiting.append(threading.Thread(target=wait, args=(number,)))
        waiting[-1].start()
        eventually(lambda number=number: shared.env("words")["waiting"] == number + 1)
    late = shared.http.post("/envs/words/reset", json={"queue_s": 0.1})
    assert (late.status_code, late.json()["code"]) == (503, "CAPACITY_REACHED")
    assert "after 0.1 s" in late.json()["message"]
    shared.close("words", sessions[0])
    for one in waiting:
        one.join()
    assert served == [0, 1, 2]
    for session in sessions[1:]:
        shared.close("words", session)


def test_a_client_plays_many_sessions_over_both_replicas(shared):
    async def main() -> list[float]:
        async with EnvClient(f"{shared.url}/envs/words", capacity_wait_s=30) as client:

            async def episode(task: int) -> float:
                session = client.session()
                step = await session.reset(options={"task": task % 8})
                while not (step.terminated or step.truncated):
                    step = await session.step(await session.solver())
                await session.close()
                return step.reward

            return await asyncio.gather(*(episode(task) for task in range(12)))

    assert asyncio.run(main()) == [1.0] * 12


def test_a_snapshot_of_one_session_is_restored_in_another(shared):
    session = shared.begin("words", index=2)
    shared.step("words", session, "cloud")
    snapshot = shared.http.post("/envs/words/snapshot", json={"session_id": session}).json()["snapshot"]
    fork = shared.http.post("/envs/words/restore", json={"snapshot": snapshot}).json()["session_id"]
    assert fork != session
    _, there = shared.step("words", session, "nothing", step=1)
    _, here = shared.step("words", fork, "nothing", step=0)
    assert there["observation"] == here["observation"]
    for one in (session, fork):
        shared.close("words", one)


def test_a_dead_replica_loses_its_sessions_and_is_replaced(shared):
    sessions = [shared.begin("words") for _ in range(4)]
    victim = children_of(shared.process.pid)[0]
    os.kill(victim, signal.SIGKILL)
    answers = [eventually(lambda one=one: observation_of(shared.step("words", one, step=0))) for one in sessions]
    codes = [answer.get("code", "stepped") for answer in answers]
    assert sorted(codes) == ["EPISODE_LOST", "EPISODE_LOST", "stepped", "stepped"]
    eventually(lambda: len(children_of(shared.process.pid)) == 2)
    assert str(victim) not in str(ready(shared, "words", 2))
    assert shared.env("words")["restarts"] >= 1
    for session in sessions:
        shared.close("words", session)
    again = [shared.begin("words") for _ in range(4)]
    for session in again:
        shared.close("words", session)


def observation_of(answer: tuple[int, dict]) -> dict | None:
    """Not the answers between a replica's death and its discovery: those say that one may ask again."""
    return None if answer[1].get("code") == "UNREACHABLE" else answer[1]


def test_demand_starts_replicas_and_idleness_stops_them(gateway):
    body = {"entry_point": ECHO, "replicas": {"min": 1, "max": 2}, "max_sessions": 2, "idle_s": 0.5}
    assert gateway.register("words", **body).status_code == 201
    sessions = [gateway.begin("words", queue_s=30) for _ in range(4)]
    assert len(gateway.env("words")["running"]) == 2
    refused = gateway.http.post("/envs/words/reset", json={})
    assert refused.status_code == 503
    assert len(gateway.env("words")["running"]) == 2
    assert [gateway.step("words", session, step=0)[0] for session in sessions] == [200] * 4
    for session in sessions:
        gateway.close("words", session)
    eventually(lambda: len(gateway.env("words")["running"]) == 1)
    gateway.close("words", gateway.begin("words"))


def test_an_env_may_sleep_until_it_is_wanted(gateway):
    body = {"entry_point": ECHO, "replicas": {"min": 0, "max": 1}, "idle_s": 0.2}
    assert gateway.register("words", **body).status_code == 201
    eventually(lambda: gateway.env("words")["state"] == "asleep")
    assert gateway.http.get("/envs/words/metadata").json()["name"] == "echo"
    assert gateway.http.get("/envs/words/health").json()["status"] == "healthy"
    session = gateway.begin("words", queue_s=30)
    assert gateway.env("words")["state"] == "live"
    gateway.close("words", session)
    eventually(lambda: gateway.env("words")["state"] == "asleep")


def test_removing_an_env_waits_for_its_sessions(gateway):
    with env_server(echo=EchoEnv) as server:
        for name, source in (("given", {"url": server}), ("ours", {"entry_point": ECHO})):
            assert gateway.register(name, **source).status_code == 201
            session = gateway.begin(name)
            replies = []
            removing = threading.Thread(target=lambda name=name, to=replies: to.append(delete(gateway, name, 30)))
            removing.start()
            eventually(lambda name=name: gateway.env(name)["state"] == "removing")
            refused = gateway.http.post(f"/envs/{name}/reset", json={"queue_s": 60}).json()  # at once
            assert "it is being removed" in refused["message"]
            assert gateway.http.post(f"/envs/{name}/reset", json={}).status_code == 503
            assert gateway.http.delete(f"/environments/{name}").status_code == 409
            assert gateway.step(name, session)[0] == 200
            gateway.close(name, session)
            removing.join()
            assert replies == [{"name": name, "removed": True, "sessions_lost": 0}]
        assert gateway.register("ours", entry_point=ECHO).status_code == 201
        session = gateway.begin("ours")
        assert delete(gateway, "ours", 0)["sessions_lost"] == 1
        assert gateway.step("ours", session)[0] == 404


def test_a_socket_that_outlives_its_env_has_an_error_for_it(gateway):
    assert gateway.register("words", entry_point=ECHO).status_code == 201
    url = f"ws{gateway.url[4:]}/envs/words/ws"
    with (
        websockets.sync.client.connect(f"{url}?ext=1", proxy=None) as ours,
        websockets.sync.client.connect(url, proxy=None) as openenv,
    ):
        ours.recv()
        openenv.send('{"type": "reset", "data": {}}')
        openenv.recv()
        delete(gateway, "words", 0)
        step = {"session_id": "0" * 32, "action": {"text": "apple"}}
        ours.send(json.dumps({"id": 1, "type": "step", "data": step}))
        assert json.loads(ours.recv())["data"]["code"] == "UNKNOWN_ENVIRONMENT"
        ours.send(json.dumps({"id": 2, "type": "step_many", "data": {"steps": [step]}}))
        assert json.loads(ours.recv())["data"]["results"][0][1]["code"] == "UNKNOWN_ENVIRONMENT"
        openenv.send('{"type": "step", "data": {"text": "apple"}}')
        assert "was removed from this gateway" in json.loads(openenv.recv())["data"]["message"]


def test_leases_are_renewed_though_others_are_gone_or_stuck():
    renewed: list[str] = []

    class Backend(GatewayBackend):
        def state(self, env, session_id):
            if env == "gone":
                return super().state(env, session_id)
            if env == "stuck":
                return asyncio.get_running_loop().create_future()  # its server never answers
            renewed.append(session_id)
            return b"{}"

    async def main() -> None:
        attachments = Attachments(Backend({}), lease_s=0.03)
        for env in ("gone", "stuck", "here"):
            attachments.add(env, "one")
        give_up = time.monotonic() + 5
        while len(renewed) < 3 and time.monotonic() < give_up:
            await asyncio.sleep(0.01)
        for env in ("gone", "stuck", "here"):
            attachments.remove(env, "one")

    asyncio.run(main())
    assert len(renewed) >= 3


def delete(gateway: Api, name: str, drain_s: float) -> dict:
    return gateway.http.delete(f"/environments/{name}?drain_s={drain_s}").json()


def test_an_env_whose_server_is_away_says_so_and_comes_back(gateway):
    with env_server(echo=EchoEnv) as server:
        assert gateway.register("words", url=server).status_code == 201
        session = gateway.begin("words")
    status, error = gateway.step("words", session)
    assert (status, error["code"]) == (503, "UNREACHABLE")
    eventually(lambda: gateway.env("words")["state"] == "down")
    refused = gateway.http.post("/envs/words/reset", json={}).json()
    assert refused["code"] == "CAPACITY_REACHED"
    assert "no health from" in refused["message"]
    assert gateway.http.get("/envs/words/health").json()["status"] == "unhealthy"


def test_a_slow_step_does_not_hold_up_the_others(gateway):
    latency_s = [0.0]
    with env_server(echo=lambda: EchoEnv(latency_s=latency_s[0], inline=False)) as server:
        assert gateway.register("words", url=server).status_code == 201
        latency_s[0] = 0.4
        sessions = [gateway.begin("words") for _ in range(8)]
        begun = time.monotonic()
        body = {"steps": [{"session_id": one, "action": {"text": "x"}, "step": 0} for one in sessions], "wait_for": 8}
        results = gateway.http.post("/envs/words/step_many", json=body).json()["results"]
        assert all(result["step"] == 1 for result in results)
        assert time.monotonic() - begun < 8 * 0.4  # one after another would take that long
