from __future__ import annotations

import asyncio
import base64
import pkgutil
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from agentgym.errors import ConfigError, MissingDependency, UnknownEnvironment
from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.env_server.workers.env_call import envs_of
from agentgym_servers.env_server.workers.worker import LocalWorker

ECHO = "agentgym.testing:EchoEnv"


def test_an_episode(play):
    async def script(api):
        status, first = await api.post("/reset", index=0, seed=3)
        assert status == 200
        assert first["observation"] == {"text": "Say: apple", "metadata": {}}
        assert (first["reward"], first["done"], first["step"], first["metadata"]) == (None, False, 0, None)
        session_id = first["session_id"]
        for index, word in enumerate(("apple", "brook", "cloud")):
            status, last = await api.step(session_id, word, index)
            assert status == 200
        assert (last["terminated"], last["truncated"], last["done"]) == (True, False, True)
        assert (last["reward"], last["step"], last["info"]["success"]) == (1.0, 3, True)
        assert last["server_ms"] > 0
        return await api.step(session_id, "more", 3)

    status, refused = play(create_app([ECHO]), script)
    assert status == 409
    assert refused["code"] == "OUT_OF_ORDER"
    assert "ended after 3 steps" in refused["message"]


def test_reset_needs_no_body_and_a_step_needs_no_index(play):
    async def script(api):
        reply = await api.http.post("/reset")
        session_id = reply.json()["session_id"]
        steps = [(await api.step(session_id, "x"))[1]["step"] for _ in range(3)]
        return reply.status_code, steps

    assert play(create_app([ECHO]), script) == (200, [1, 2, 3])


@pytest.mark.parametrize("inline", [True, False])
def test_a_repeated_step_is_replayed_byte_for_byte(play, inline):
    async def script(api):
        session_id = await api.begin()
        body = {"session_id": session_id, "action": {"text": "apple"}, "step": 0}
        first, second = [(await api.http.post("/step", json=body)).content for _ in range(2)]
        assert first == second
        for index in range(1, 6):
            await api.step(session_id, f"w{index}", index)
        kept = [(await api.step(session_id, f"w{index}", index))[0] for index in range(1, 6)]
        assert kept == [409, 200, 200, 200, 200]
        assert "another action" in (await api.step(session_id, "other", 5))[1]["message"]
        status, ahead = await api.step(session_id, "x", 8)
        assert (status, ahead["code"]) == (409, "OUT_OF_ORDER")
        assert "the next is 6" in ahead["message"]

    play(create_app({"echo": lambda: EchoEnv(inline=inline)}), script)


def test_a_running_step_is_joined_and_others_find_it_busy(play):
    async def script(api):
        session_id = await api.begin()
        first = asyncio.create_task(api.step(session_id, "apple", 0))
        await asyncio.sleep(0.05)
        again = asyncio.create_task(api.step(session_id, "apple", 0))
        assert (await api.step(session_id, "brook", 1))[1]["code"] == "SESSION_BUSY"
        assert (await api.step(session_id, "other", 0))[1]["code"] == "OUT_OF_ORDER"
        assert (await api.post("/reset", session_id=session_id))[1]["code"] == "SESSION_BUSY"
        assert (await api.post("/solver", session_id=session_id))[0] == 409
        assert await first == await again
        assert (await first)[1]["step"] == 1
        assert (await api.step(session_id, "brook", 1))[1]["step"] == 2

    play(create_app({"slow": lambda: EchoEnv(latency_s=0.3)}), script)


def test_a_client_that_goes_away_does_not_stop_the_step(play):
    async def script(api):
        session_id = await api.begin()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(api.step(session_id, "apple", 0), 0.05)
        return await api.step(session_id, "apple", 0)

    assert play(create_app({"slow": lambda: EchoEnv(latency_s=0.2)}), script)[1]["step"] == 1


@pytest.mark.parametrize("inline", [True, False])
def test_a_repeated_reset_is_the_same_episode(play, inline):
    app = create_app({"echo": lambda: EchoEnv(inline=inline)})

    async def script(api):
        body = {"episode_id": "e1", "index": 0}
        first, joined = await asyncio.gather(api.post("/reset", **body), api.post("/reset", **body))
        assert first == joined
        session_id = first[1]["session_id"]
        await api.step(session_id, "apple", 0)
        assert await api.post("/reset", **body) == first
        assert await api.post("/reset", session_id=session_id, **body) == first
        assert (await api.step(session_id, "brook", 1))[1]["step"] == 2  # the replay disturbed nothing
        assert (await api.post("/reset", episode_id="e1", index=1))[1]["code"] == "OUT_OF_ORDER"
        status, second = await api.post("/reset", session_id=session_id, episode_id="e2", index=1)
        assert (status, second["session_id"], second["step"]) == (200, session_id, 0)
        for late in ({}, {"session_id": session_id}):  # a duplicate that was under way all this time
            assert (await api.post("/reset", **body, **late))[1]["code"] == "OUT_OF_ORDER"
        assert (await api.step(session_id, "apple", 0, episode_id="e1"))[1]["code"] == "OUT_OF_ORDER"
        assert (await api.step(session_id, "x", 0, episode_id="e2"))[1]["step"] == 1
        return len(app.state.sessions.live)

    assert play(app, script) == 1


def test_unknown_closed_and_expired_sessions(play):
    now = [0.0]
    app = create_app([ECHO], lease_s=10, clock=lambda: now[0])

    async def script(api):
        assert (await api.step("never"))[0] == 404
        closed = await api.begin()
        for _ in range(2):
            assert await api.post("/close", session_id=closed) == (
                200,
                {"session_id": closed, "step": 0, "closed": True},
            )
        status, gone = await api.step(closed)
        assert (status, gone["code"]) == (410, "EPISODE_LOST")
        assert "closed" in gone["message"]
        idle, used = await api.begin(), await api.begin()
        now[0] = 9.0
        await api.step(used)
        now[0] = 15.0
        status, gone = await api.step(idle)
        assert status == 410
        assert "lease" in gone["message"]
        assert (await api.step(used))[0] == 200

    play(app, script)


def test_leases_are_swept_without_anybody_asking():
    app = create_app([ECHO], lease_s=0.2)

    async def main():
        from agentgym_servers.env_server.workers.env_call import envs_of

        async with app.router.lifespan_context(app):
            app.state.sessions.open(envs_of([ECHO])["echo"])
            async with asyncio.timeout(10):
                while app.state.sessions.live:
                    await asyncio.sleep(0.02)

    asyncio.run(main())


def test_no_room(play):
    now = [0.0]

    async def script(api):
        sessions = [await api.begin(episode_id=name) for name in "ab"]
        reply = await api.http.post("/reset")
        assert reply.status_code == 503
        assert reply.headers["retry-after"] == "1"
        assert reply.json()["code"] == "CAPACITY_REACHED"
        assert reply.json()["retryable"] is True
        await api.post("/reset", session_id=sessions[0])  # needs no room
        await api.post("/close", session_id=sessions[0])
        await api.begin()
        now[0] = 1000.0  # the leases have run out
        await api.begin()

    play(create_app([ECHO], max_sessions=2, clock=lambda: now[0]), script)


def test_an_env_that_hangs_loses_its_session_alone(play):
    app = create_app({"hangs": lambda: EchoEnv(hang_at=1, hang_s=2.5, step_deadline_s=0.5)}, max_sessions=2)

    async def script(api):
        hanging, other = await api.begin(), await api.begin()
        await api.step(hanging, "apple", 0)
        started = time.perf_counter()
        late, fine = await asyncio.gather(api.step(hanging, "x", 1), api.step(other, "apple", 0))
        assert time.perf_counter() - started < 2
        assert (late[0], late[1]["code"], fine[0]) == (504, "DEADLINE_EXCEEDED", 200)
        status, gone = await api.step(hanging, "x", 1)
        assert status == 410
        assert "0.5 s" in gone["message"]
        assert (await api.get("/health"))[1]["stuck"] == 1
        assert (await api.http.post("/reset")).status_code == 503  # the stuck thread keeps its place ...
        while (await api.get("/health"))[1]["stuck"]:
            await asyncio.sleep(0.02)
        await api.begin()  # ... until it returns
        assert (await api.get("/health"))[1] == {
            "status": "healthy",
            "env": "hangs",
            "sessions": 2,
            "stuck": 0,
            "env_sessions": 2,
            "max_sessions": 2,
        }

    play(app, script)


def test_a_request_may_ask_for_a_shorter_deadline(play):
    async def script(api):
        session_id = await api.begin()
        return await api.step(session_id, "x", 0, timeout_s=0.05)

    assert play(create_app({"slow": lambda: EchoEnv(latency_s=0.3)}), script)[0] == 504


@pytest.mark.parametrize("inline", [True, False])
def test_an_env_that_raises_ends_its_session(play, inline):
    async def script(api):
        session_id = await api.begin()
        status, crash = await api.step(session_id, "x", 0)
        assert (status, crash["code"], crash["scope"]) == (500, "ENVIRONMENT_CRASHED", "env")
        assert "told to crash" in crash["message"]
        status, gone = await api.step(session_id, "x", 0)
        assert (status, gone["code"]) == (410, "EPISODE_LOST")
        assert "told to crash" in gone["message"]

    play(create_app({"crash": lambda: EchoEnv(crash_at=0, inline=inline)}), script)


@pytest.mark.parametrize(
    ("garbage", "complaint"),
    [
        ("tuple", "not (observation, reward, terminated, truncated, info)"),
        ("reward", "finite number, it is nan"),
        ("observation", "should be text, it is 42"),
        ("info", "not JSON"),
        ("end", "should be bools"),
    ],
)
def test_an_env_that_answers_garbage_ends_its_session(play, garbage, complaint):
    async def script(api):
        session_id = await api.begin()
        return await api.step(session_id, "x", 0), await api.step(session_id, "x", 0)

    (status, crash), later = play(create_app({"bad": lambda: EchoEnv(garbage_at=0, garbage=garbage)}), script)
    assert (status, crash["code"]) == (500, "ENVIRONMENT_CRASHED")
    assert complaint in crash["message"]
    assert later[0] == 410


class Odd(EchoEnv):
    """Numpy in info, sys.exit in hint, a constructor and a close that raise."""

    broken = False

    def __init__(self) -> None:
        if self.broken:
            raise OSError("no display")
        super().__init__()

    def _info(self, valid: bool) -> dict[str, Any]:
        return {"count": np.int64(3), "flag": np.True_, "at": np.arange(2), **super()._info(valid)}

    def hint(self) -> str:
        raise SystemExit(3)

    def close(self) -> None:
        if self._turns or self._split:  # not when only its spec was read
            raise RuntimeError("cannot close")


def test_numpy_in_info_is_converted_and_odd_envs_do_no_harm(play, caplog):
    async def script(api):
        status, reply = await api.post("/reset")
        assert status == 200
        assert (reply["info"]["count"], reply["info"]["flag"], reply["info"]["at"]) == (3, True, [0, 1])
        status, crash = await api.post("/hint", session_id=reply["session_id"])
        assert (status, crash["code"]) == (500, "ENVIRONMENT_CRASHED")
        assert "SystemExit" in crash["message"]
        assert "cannot close" in caplog.text
        Odd.broken = True
        status, crash = await api.post("/reset")
        assert "no display" in crash["message"]
        assert (await api.get("/health"))[1]["sessions"] == 0

    try:
        play(create_app({"odd": Odd}), script)
    finally:
        Odd.broken = False


def test_a_request_the_env_refuses_costs_only_the_episode(play):
    app = create_app([ECHO])

    async def script(api):
        for bad in ({"split": "nowhere"}, {"index": 99}, {"task": "three"}):
            status, refused = await api.post("/reset", **bad)
            assert (status, refused["code"]) == (422, "BAD_REQUEST")
        assert not app.state.sessions.live
        assert not app.state.sessions.episodes
        session_id = await api.begin()
        assert (await api.post("/reset", session_id=session_id, index=99))[0] == 422
        assert (await api.step(session_id))[1]["code"] == "OUT_OF_ORDER"  # no episode to step in
        assert (await api.post("/reset", session_id=session_id, index=0))[0] == 200

    play(app, script)


def test_requests_that_are_wrong(play):
    async def script(api):
        session_id = await api.begin()
        action = {"text": "a"}
        for path, body, location in (
            ("/step", {"session_id": session_id}, ["body", "action"]),
            ("/step", {"session_id": session_id, "action": {"txt": "a"}}, ["txt"]),
            ("/step", {"session_id": session_id, "action": action, "step": -1}, ["body", "step"]),
            ("/step", {"session_id": session_id, "action": action, "extra": 1}, ["body", "extra"]),
            ("/reset", {"seed": -1}, ["body", "seed"]),
            ("/step_many", {"steps": []}, ["body", "steps"]),
        ):
            status, refused = await api.post(path, **body)
            assert status == 422
            assert refused["code"] == "BAD_REQUEST"
            assert refused["detail"][0]["loc"] == location
        status, refused = await api.post("/step", session_id=session_id, action={})
        assert (status, refused["code"]) == (422, "BAD_REQUEST")
        reply = await api.http.post("/step", content=b"{not json")
        assert (reply.status_code, reply.json()["code"]) == (422, "BAD_REQUEST")
        reply = await api.http.post("/reset", content=b" " * (2**20 + 1))
        assert (reply.status_code, reply.json()["code"]) == (413, "BODY_TOO_LARGE")
        assert (await api.get("/nowhere"))[1]["code"] == "NOT_FOUND"
        assert (await api.get("/step"))[0] == 405
        status, unknown = await api.get("/envs/nowhere/health")
        assert status == 404
        assert "it has echo" in unknown["message"]
        assert (await api.step(session_id, "a", 0))[0] == 200

    play(create_app([ECHO], max_body_bytes=2**20), script)


def test_several_envs(play):
    app = create_app({"first": EchoEnv, "second": lambda: EchoEnv(max_turns=2)})

    async def script(api):
        listed = (await api.get("/envs"))[1]["environments"]
        assert [(entry["name"], entry["path"]) for entry in listed] == [
            ("first", "/envs/first"),
            ("second", "/envs/second"),
        ]
        assert (await api.get("/metadata"))[1]["agentgym"]["spec"]["max_turns"] == 8
        assert (await api.get("/envs/second/metadata"))[1]["agentgym"]["spec"]["max_turns"] == 2
        session_id = (await api.post("/envs/second/reset"))[1]["session_id"]
        assert (await api.step(session_id))[0] == 404  # the root is the first environment
        body = {"session_id": session_id, "action": {"text": "x"}}
        assert (await api.post("/envs/second/step", **body))[1]["truncated"] is False
        assert (await api.post("/envs/second/step", **body))[1]["truncated"] is True
        assert (await api.post("/envs/first/reset"))[0] == 200

    play(app, script)


def test_what_a_server_says_of_itself(play):
    async def script(api):
        health, metadata = (await api.get("/health"))[1], (await api.get("/metadata"))[1]
        schema, openapi = (await api.get("/schema"))[1], (await api.get("/openapi.json"))[1]
        return health, metadata, schema, openapi

    health, metadata, schema, openapi = play(create_app([ECHO]), script)
    assert health["status"] == "healthy"
    assert metadata["name"] == "echo"
    assert metadata["description"]
    assert metadata["agentgym"]["protocol"] == "1"
    assert {"step_many", "exactly_once", "snapshot"} <= set(metadata["agentgym"]["extensions"])
    assert {key: value["type"] for key, value in schema.items()} == dict.fromkeys(
        ("action", "observation", "state", "reset_observation"), "object"
    )
    assert openapi["info"]["version"] == "1.0.0"
    assert {"/step", "/step_many", "/envs/{name}/reset"} <= set(openapi["paths"])


@pytest.mark.parametrize("inline", [True, False])
def test_a_snapshot_forks_the_episode(play, inline):
    async def script(api):
        session_id = await api.begin(seed=5)
        await api.step(session_id, "apple", 0)
        snapshot = (await api.post("/snapshot", session_id=session_id))[1]["snapshot"]
        fork = (await api.post("/restore", snapshot=snapshot, episode_id="f"))[1]
        assert (await api.post("/restore", snapshot=snapshot, episode_id="f"))[1] == fork
        assert fork["session_id"] != session_id
        assert (await api.post("/solver", session_id=fork["session_id"]))[1]["action"]["text"] == "brook"
        assert (await api.post("/hint", session_id=fork["session_id"]))[1]["hint"] == "The word begins with 'b'."
        tails = []
        for one, first in ((session_id, 1), (fork["session_id"], 0)):
            replies = [(await api.step(one, word, first + i))[1] for i, word in enumerate(("brook", "no", "cloud"))]
            tails.append([{k: r[k] for k in ("observation", "reward", "done", "info")} for r in replies])
        assert tails[0] == tails[1]
        assert tails[0][-1]["done"] is True

    play(create_app({"echo": lambda: EchoEnv(inline=inline)}), script)


DICE = """
from agentgym.testing import EchoEnv


class Dice(EchoEnv):
    env_spec = EchoEnv.env_spec.model_copy(update={"id": "dice", "inline": False})

    def step(self, action):
        _, *rest = super().step(action)
        return f"threw {self.np_random.integers(1000)}", *rest
"""


@pytest.mark.parametrize("where", ["inline", "thread", "process"])
def test_a_seed_of_restore_gives_the_fork_another_future(play, where, tmp_path, monkeypatch):
    (tmp_path / "dice_env.py").write_text(DICE)
    monkeypatch.syspath_prepend(tmp_path)

    def make() -> Any:
        return pkgutil.resolve_name("dice_env:Dice")(inline=where == "inline")

    async def script(api):
        session_id = await api.begin(seed=5)
        snapshot = (await api.post("/snapshot", session_id=session_id))[1]["snapshot"]

        async def future(**seed):
            fork = (await api.post("/restore", snapshot=snapshot, **seed))[1]
            return (await api.step(fork["session_id"], "no", 0))[1]["observation"]["text"]

        own = (await api.step(session_id, "no", 0))[1]["observation"]["text"]
        assert await future() == own
        assert await future(seed=1) == await future(seed=1) != own
        assert await future(seed=2) not in (own, await future(seed=1))
        first = await api.post("/restore", snapshot=snapshot, seed=1, episode_id="f")
        assert await api.post("/restore", snapshot=snapshot, seed=1, episode_id="f") == first
        status, refused = await api.post("/restore", snapshot=snapshot, seed=-1)
        assert (status, refused["code"]) == (422, "BAD_REQUEST")

    play(create_app(["dice_env:Dice"] if where == "process" else {"dice": make}), script)
    sys.modules.pop("dice_env", None)


def test_snapshots_that_are_none(play):
    async def script(api):
        for bad in ("!", base64.b64encode(b"{}").decode(), base64.b64encode(b"\xff").decode()):
            status, refused = await api.post("/restore", snapshot=bad)
            assert (status, refused["code"]) == (422, "BAD_REQUEST")
        assert (await api.get("/health"))[1]["sessions"] == 0

    play(create_app([ECHO]), script)


class Plain(EchoEnv):
    env_spec = EchoEnv.env_spec.model_copy(update={"capabilities": ()})


def test_abilities_an_env_does_not_have(play):
    async def script(api):
        session_id = await api.begin()
        for verb in ("solver", "hint", "snapshot"):
            status, refused = await api.post(f"/{verb}", session_id=session_id)
            assert (status, refused["code"]) == (422, "BAD_REQUEST")
            assert f"has no {verb}" in refused["message"]
        return (await api.step(session_id))[0]

    assert play(create_app({"plain": Plain}), script) == 200


def test_step_many_answers_the_fast_ones_first(play):
    gate = threading.Event()

    class Gated(EchoEnv):
        def step(self, action: Any) -> Any:
            if action == "wait":
                gate.wait(10)
            return super().step(action)

    async def script(api):
        a, b, c = [await api.begin() for _ in range(3)]
        steps = [
            {"session_id": session_id, "action": {"text": text}, "step": step}
            for session_id, text, step in ((a, "apple", 0), (b, "wait", 0), (c, "apple", 7), ("never", "x", 0))
        ]
        began = time.perf_counter()
        results = (await api.post("/step_many", steps=steps, wait_s=0.05))[1]["results"]
        assert time.perf_counter() - began < 5
        assert results[0]["step"] == 1
        assert results[1] is None
        assert [entry["code"] for entry in results[2:]] == ["OUT_OF_ORDER", "UNKNOWN_SESSION"]
        rest = asyncio.create_task(api.post("/step_many", steps=steps[1:2]))  # joins it and waits
        await asyncio.sleep(0.05)
        assert not rest.done()
        gate.set()
        assert (await rest)[1]["results"][0]["step"] == 1
        again = (await api.post("/step_many", steps=steps[:2]))[1]["results"]
        assert [entry["step"] for entry in again] == [1, 1]

    play(create_app({"gated": lambda: Gated(inline=False)}), script)


def test_step_many_reports_a_crash_in_its_place(play):
    async def script(api):
        ids = [await api.begin() for _ in range(2)]
        steps = [{"session_id": i, "action": {"text": "x"}, "step": 0} for i in ids]
        return (await api.post("/step_many", steps=steps))[1]["results"]

    results = play(create_app({"crash": lambda: EchoEnv(crash_at=0, inline=False)}), script)
    assert [entry["code"] for entry in results] == ["ENVIRONMENT_CRASHED"] * 2


def test_images_cross_the_wire(play):
    async def script(api):
        return (await api.post("/reset"))[1]["observation"], (await api.get("/schema"))[1]["observation"]

    observation, schema = play(create_app({"seen": lambda: EchoEnv(image=True)}), script)
    assert base64.b64decode(observation["image"]).startswith(b"\x89PNG")
    assert schema["required"] == ["text", "image"]


def test_envs_that_cannot_be_served(monkeypatch):
    with pytest.raises(UnknownEnvironment):
        create_app(["no-such-env"])
    with pytest.raises(ConfigError, match="at least one environment"):
        create_app([])
    with pytest.raises(ConfigError, match="'echo'"):
        create_app([ECHO, ECHO])
    monkeypatch.setattr("agentgym.registry.get_spec", lambda name: EchoEnv.env_spec)
    with pytest.raises(MissingDependency, match="no_such_package"):
        create_app(["no_such_package:Env"])


def test_every_call_of_an_env_comes_from_one_thread():
    threads = set()

    class Watched(EchoEnv):
        def __init__(self) -> None:
            threads.add(threading.get_ident())
            super().__init__(inline=False)

        def step(self, action: Any) -> Any:
            threads.add(threading.get_ident())
            return super().step(action)

        def close(self) -> None:
            threads.add(threading.get_ident())

    env = envs_of({"watched": Watched})["watched"]
    threads.clear()
    freed = threading.Event()

    async def main() -> None:
        worker = LocalWorker(env)
        await worker.call("reset", 0, {}, deadline_s=5)
        for _ in range(3):
            await worker.call("step", "x", deadline_s=5)
        worker.close(freed.set)

    asyncio.run(main())
    assert freed.wait(5)
    assert len(threads) == 1
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/step", {"session_id": "s", "action": "3"}, 'body.action: an action is an object: {"text": "go north"}'),
        (
            "/step_many",
            {"steps": [{"session_id": "s", "action": 3}]},
            'steps.0.action: an action is an object: {"text"',
        ),
        ("/reset", [], "the request is not valid: it should be a JSON object"),
    ],
)
def test_a_malformed_request_gets_the_right_form(play, path, body, message):
    async def script(api):
        reply = await api.http.post(path, json=body)
        assert (reply.status_code, reply.json()["code"]) == (422, "BAD_REQUEST")
        assert message in reply.json()["message"]
        assert not any(word in reply.text for word in ("WireAction", "Request", "Value error", "dictionary"))

    play(create_app([ECHO]), script)
