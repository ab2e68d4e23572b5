"""A server without room: who waits, who is told to come back, whose place is given away, and which retries are one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app

ECHO = "agentgym.testing:EchoEnv"


async def reset(api: Any, episode_id: str, **body: Any) -> tuple[int, Any]:
    return await api.post("/reset", episode_id=episode_id, **body)


async def waiting(app: Any, count: int) -> None:
    while len(app.state.sessions.waiting) != count:
        await asyncio.sleep(0.005)


def test_first_come_first_served(play):
    async def script(api):
        first = (await reset(api, "first"))[1]["session_id"]
        order: list[str] = []

        async def wait(name: str) -> str:
            status, reply = await reset(api, name, queue_s=30)
            assert status == 200, reply
            order.append(name)
            return reply["session_id"]

        queued = []
        for name in "abc":
            queued.append(asyncio.create_task(wait(name)))
            await waiting(app, len(queued))
        assert (await reset(api, "impatient"))[0] == 503
        await api.post("/close", session_id=first)
        for session in queued:
            await api.post("/close", session_id=await session)
        assert order == ["a", "b", "c"]
        assert (await api.get("/health"))[1]["sessions"] == 0
        assert (await reset(api, "impatient"))[0] == 200

    app = create_app([ECHO], max_sessions=1)
    play(app, script)


def test_a_request_that_waits_in_vain_gets_a_retry_time(play):
    now = [0.0]

    async def script(api):
        taken = [(await reset(api, name))[1]["session_id"] for name in "ab"]
        for session_id in taken:  # places become free every ten seconds
            now[0] += 10
            await api.post("/close", session_id=session_id)
            await reset(api, f"{session_id} next")
        reply = await api.http.post("/reset", json={"episode_id": "late", "queue_s": 0.05})
        assert (reply.status_code, reply.json()["code"]) == (503, "CAPACITY_REACHED")
        assert not app.state.sessions.waiting
        assert 1 < int(reply.headers["retry-after"]) <= 20
        return (await api.get("/health"))[1]["sessions"]

    app = create_app([ECHO], max_sessions=2, clock=lambda: now[0])
    assert play(app, script) == 2


def test_the_same_request_waits_once(play):
    async def script(api):
        session_id = (await reset(api, "first"))[1]["session_id"]
        requests = [asyncio.create_task(reset(api, "e", queue_s=queue_s, index=1)) for queue_s in (0.2, 30, 30)]
        await asyncio.sleep(0.4)  # longer than the first would have waited alone
        assert len(app.state.sessions.waiting) == 1
        await api.post("/close", session_id=session_id)
        replies = await asyncio.gather(*requests)
        assert replies[0][0] == 200
        assert replies[0] == replies[1] == replies[2]
        assert len(app.state.sessions.live) == 1

    app = create_app([ECHO], max_sessions=1)
    play(app, script)


def test_a_fork_can_wait_and_the_queue_has_an_end(play):
    async def script(api):
        session_id = (await reset(api, "first"))[1]["session_id"]
        snapshot = (await api.post("/snapshot", session_id=session_id))[1]["snapshot"]
        fork = asyncio.create_task(api.post("/restore", snapshot=snapshot, episode_id="f", queue_s=30))
        await waiting(app, 1)
        assert (await reset(api, "one too many", queue_s=30))[0] == 503
        await api.post("/close", session_id=session_id)
        status, reply = await fork
        assert status == 200
        assert (await api.post("/solver", session_id=reply["session_id"]))[0] == 200

    app = create_app([ECHO], max_sessions=1, queue=1)
    play(app, script)


def test_a_slot_held_by_a_hanging_env_is_reused_later(play):
    async def script(api):
        session_id = (await reset(api, "e"))[1]["session_id"]
        assert (await api.step(session_id, "x", 0))[0] == 504
        assert (await reset(api, "no room"))[0] == 503
        assert (await reset(api, "patient", queue_s=30))[0] == 200

    play(create_app({"hangs": lambda: EchoEnv(hang_at=0, hang_s=1.0, step_deadline_s=0.2)}, max_sessions=1), script)


def test_a_server_that_stops_sends_those_who_wait_away():
    app = create_app([ECHO], max_sessions=1)

    async def main() -> None:
        from agentgym.errors import AtCapacity
        from agentgym_servers.env_server.workers.env_call import envs_of

        async with app.router.lifespan_context(app):
            (env,) = envs_of([ECHO]).values()
            app.state.sessions.open(env)
            waiter = app.state.sessions.admit(env, None, 30.0)
        with pytest.raises(AtCapacity):
            await waiter

    asyncio.run(main())


def test_sessions_opened_in_passing_make_room_and_others_do_not(play):
    async def script(api):
        passing = (await api.post("/reset"))[1]["session_id"]
        kept = (await reset(api, "kept"))[1]["session_id"]
        used = (await api.post("/reset"))[1]["session_id"]
        await api.step(used)
        for name in "xy":
            await api.post("/close", session_id=(await reset(api, name))[1]["session_id"])
        status, gone = await api.step(passing)
        assert (status, gone["code"]) == (410, "EPISODE_LOST")
        assert "episode_id" in gone["message"]
        for session_id in (kept, used):
            assert (await api.step(session_id))[0] == 200
        for _ in range(20):  # OpenEnv's clients, over HTTP
            assert (await api.post("/reset"))[0] == 200
        assert (await reset(api, "z"))[0] == 200
        assert (await reset(api, "no room"))[0] == 503

    play(create_app([ECHO], max_sessions=3), script)


@pytest.mark.parametrize("inline", [True, False])
def test_a_request_id_makes_an_unindexed_step_repeatable(play, inline):
    async def script(api):
        session_id = await api.begin()
        one, joined = await asyncio.gather(*(api.step(session_id, "apple", request_id='"1"') for _ in range(2)))
        assert one == joined
        assert (one[1]["step"], one[1]["request_id"]) == (1, '"1"')
        two = await api.step(session_id, "brook", request_id="2")
        assert two[1]["step"] == 2
        assert await api.step(session_id, "apple", request_id='"1"') == one
        status, refused = await api.step(session_id, "another", request_id="2")
        assert (status, refused["code"]) == (409, "OUT_OF_ORDER")
        assert (await api.step(session_id, "no", 2, request_id="2"))[1]["step"] == 3  # the index says which
        assert [(await api.step(session_id, "no"))[1]["step"] for _ in range(2)] == [4, 5]  # nothing says they are one

    play(create_app({"echo": lambda: EchoEnv(latency_s=0.0 if inline else 0.05)}), script)
