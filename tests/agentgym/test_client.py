from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from agentgym.clients.client import EnvClient, connect
from agentgym.errors import (
    AtCapacity,
    BadRequest,
    ConfigError,
    DeadlineExceeded,
    EnvironmentCrashed,
    EnvironmentFailure,
    EpisodeLost,
    OutOfOrder,
    SessionBusy,
    UnknownEnvironment,
    Unreachable,
    UsageError,
)
from agentgym.session import LocalSession
from agentgym.testing import EchoEnv, FaultyTransport
from agentgym_servers.env_server.app import create_app

ECHO = "agentgym.testing:EchoEnv"
URL = "http://env"


def app_of(**kwargs: Any) -> Any:
    return create_app({"echo": lambda: EchoEnv(**kwargs)})


def client_of(app: Any, plan: Any = (), **kwargs: Any) -> EnvClient:
    return EnvClient(URL, transport=FaultyTransport(httpx.ASGITransport(app), plan), **kwargs)


async def episode(session: Any, **reset: Any) -> list[Any]:
    """Every Step of an episode that the solver plays, with one mistake in it."""
    steps = [await session.reset(**{"seed": 1, "options": {"split": "test", "task": 2}, **reset})]
    steps.append(await session.step("wrong"))
    while not (steps[-1].terminated or steps[-1].truncated):
        steps.append(await session.step(await session.solver()))
    return steps


def local_episode() -> list[Any]:
    return asyncio.run(episode(LocalSession(EchoEnv())))


def played(client: EnvClient) -> list[Any]:
    async def main() -> list[Any]:
        async with client:
            return await episode(client.session())

    return asyncio.run(main())


@pytest.mark.parametrize("inline", [True, False])
def test_an_episode_over_the_wire_is_the_local_one(inline):
    assert played(client_of(app_of(inline=inline))) == local_episode()


def test_images_are_the_same_over_the_wire():
    remote = played(client_of(app_of(image=True)))
    local = asyncio.run(episode(LocalSession(EchoEnv(image=True))))
    for one, other in zip(remote, local):
        assert one.observation["text"] == other.observation["text"]
        assert (one.observation["image"] == other.observation["image"]).all()


@pytest.mark.parametrize("fault", ["lost request", "lost reply", "twice"])
def test_whatever_is_lost_on_the_way_the_episode_is_the_same(fault):
    plan = [part for _ in range(20) for part in (fault, "ok")]
    app = app_of()
    assert played(client_of(app, plan)) == local_episode()
    assert not app.state.sessions.live


def test_a_server_that_never_answers_is_unreachable():
    client = client_of(app_of(), ["ok", "ok", *["lost reply"] * 20], retries=2)

    async def main() -> None:
        async with client:
            session = client.session()
            await session.reset()
            with pytest.raises(Unreachable, match=r"http://env/step gave no answer after 3 attempts.*check"):
                await session.step("x")

    asyncio.run(main())


def test_a_lost_episode_stays_lost_until_reset():
    app = app_of()

    async def main() -> None:
        async with client_of(app) as client:
            session = client.session()
            with pytest.raises(OutOfOrder, match="no episode yet"):
                await session.step("x")
            await session.reset()
            app.state.sessions.close_all()
            for _ in range(2):
                with pytest.raises(EpisodeLost, match="server stopped"):
                    await session.step("x")
            await session.reset()
            app.state.sessions.ended_sessions.clear()
            app.state.sessions.live.clear()  # as after a restart
            with pytest.raises(EpisodeLost, match="was it restarted"):
                await session.step("x")
            with pytest.raises(EpisodeLost):
                await session.solver()
            assert (await session.reset()).observation.startswith("Say")
            app.state.sessions.close_all()
            await session.reset()  # the caller asked for a new episode: no reason to fail
            assert (await session.step("x")).reward == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("env", "failure"),
    [
        ({"crash_at": 0}, EnvironmentCrashed),
        ({"garbage_at": 0}, EnvironmentCrashed),
        ({"hang_at": 0, "hang_s": 0.3, "step_deadline_s": 0.1}, DeadlineExceeded),
    ],
)
def test_the_envs_failures_arrive_as_they_were_raised(env, failure):
    async def main() -> None:
        async with client_of(app_of(**env)) as client:
            session = client.session()
            await session.reset()
            with pytest.raises(failure):
                await session.step("x")
            with pytest.raises(EpisodeLost):
                await session.step("x")
            await session.reset()

    asyncio.run(main())


def test_concurrent_steps_travel_together():
    app = app_of()
    client = client_of(app)
    transport = client.calls._httpx._transport

    async def main() -> None:
        async with client:
            sessions = [client.session() for _ in range(50)]
            await asyncio.gather(*(session.reset(options={"task": 0}) for session in sessions))
            transport.paths.clear()
            results = await asyncio.gather(*(episode_of_three(session) for session in sessions))
            assert all(result.reward == 1.0 for result in results)

    async def episode_of_three(session: Any) -> Any:
        await session.step("apple")
        await session.step("brook")
        return await session.step("cloud")

    asyncio.run(main())
    assert transport.paths[:3] == ["/step_many"] * 3
    assert "/step" not in transport.paths
    assert not app.state.sessions.live  # closed with the client


def test_one_failure_in_a_batch_is_one_sessions_failure():
    app = app_of()

    async def main() -> None:
        async with client_of(app) as client:
            sessions = [client.session() for _ in range(3)]
            await asyncio.gather(*(session.reset() for session in sessions))
            app.state.sessions.end(next(iter(app.state.sessions.live.values())), "for the test")
            results = await asyncio.gather(*(session.step("x") for session in sessions), return_exceptions=True)
            assert sorted(type(result).__name__ for result in results) == ["EpisodeLost", "Step", "Step"]

    asyncio.run(main())


def test_a_slow_env_does_not_hold_up_the_others():
    gate = threading.Event()

    class Gated(EchoEnv):
        def step(self, action: Any) -> Any:
            if action == "wait":
                gate.wait(10)
            return super().step(action)

    async def main() -> None:
        async with client_of(create_app({"gated": lambda: Gated(inline=False)})) as client:
            slow, *fast = [client.session() for _ in range(8)]
            await asyncio.gather(*(session.reset() for session in (slow, *fast)))
            waiting = asyncio.create_task(slow.step("wait"))
            began = time.perf_counter()
            for _ in range(5):
                await asyncio.gather(*(session.step("x") for session in fast))
            assert time.perf_counter() - began < 5
            assert not waiting.done()
            gate.set()
            assert (await waiting).reward == 0

    asyncio.run(main())


def test_a_server_without_room_is_waited_for():
    app = create_app([ECHO], max_sessions=1)

    async def main() -> None:
        async with client_of(app, capacity_wait_s=0.5) as impatient, client_of(app) as client:
            first, second = client.session(), client.session()
            await first.reset()
            with pytest.raises(AtCapacity, match="all 1 sessions"):
                await impatient.session().reset()
            waiting = asyncio.create_task(second.reset())
            await asyncio.sleep(0.1)
            await first.reset()  # needs no room, and is not held up by the one that does
            assert not waiting.done()
            await first.close()
            assert (await waiting).observation.startswith("Say")

    asyncio.run(main())


def test_a_snapshot_is_continued_in_another_session():
    async def main() -> None:
        async with client_of(app_of()) as client:
            session, fork = client.session(), client.session()
            await session.reset(options={"task": 0})
            await session.step("apple")
            state = await session.snapshot()
            await fork.restore(state)
            assert await fork.solver() == "brook"
            assert await fork.hint() == "The word begins with 'b'."
            for word in ("brook", "cloud"):
                assert await fork.step(word) == await session.step(word)
            await session.restore(state)  # back to where it was
            assert await session.solver() == "brook"
            with pytest.raises(BadRequest, match="cannot be restored"):
                await fork.restore(b"nothing")

    asyncio.run(main())


def test_requests_that_are_wrong():
    async def main() -> None:
        async with client_of(app_of()) as client:
            session = client.session()
            for options in ({"split": "nowhere"}, {"task": 99}, {"task": "three"}, {"seed": 1}, {"x": object()}):
                with pytest.raises(BadRequest):
                    await session.reset(options=options)
            await session.reset()
            with pytest.raises(BadRequest):
                await session.step("\ud800")
            first = asyncio.create_task(session.step("x"))
            await asyncio.sleep(0)
            with pytest.raises(SessionBusy):
                await session.step("y")
            assert (await first).reward == 0
            assert (await session.step({"name": "tool", "arguments": {}})).info["valid_action"] is False

    asyncio.run(main())


def test_a_cancelled_step_can_be_repeated_but_not_changed():
    async def main() -> None:
        async with client_of(app_of(latency_s=0.2)) as client:
            session = client.session()
            await session.reset(options={"task": 0})
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.step("apple"), 0.05)
            with pytest.raises(OutOfOrder, match="another action"):
                await session.step("other")
            assert "brook" in (await session.step("apple")).observation
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.step("apple"), 0.05)
            await session.reset()  # waits for the step that is still running
            await session.step("apple")

    asyncio.run(main())


def served(answer: Callable[[httpx.Request], httpx.Response]) -> EnvClient:
    """A client of a server that answers /metadata as it should, and everything else as `answer` does."""
    extra = {"protocol": "1", "spec": EchoEnv.env_spec.model_dump(mode="json"), "extensions": ["step_many"]}

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metadata":
            return httpx.Response(200, json={"name": "echo", "agentgym": extra})
        return answer(request)

    return EnvClient(URL, transport=httpx.MockTransport(handle), retries=1)


@pytest.mark.parametrize(
    ("reply", "failure", "excerpt"),
    [
        (httpx.Response(200, text="<html>Welcome to the proxy</html>"), EnvironmentCrashed, "Welcome to the proxy"),
        (httpx.Response(200, json={"reward": 1}), EnvironmentCrashed, "Field required"),
        (httpx.Response(200, json={"observation": {"text": "x"}}), EnvironmentCrashed, "without a session_id"),
        (httpx.Response(200, json={"observation": {}, "session_id": "s"}), EnvironmentCrashed, "needs a `text`"),
        (httpx.Response(502, text="<html>Bad gateway</html>"), Unreachable, "Bad gateway"),
        (httpx.Response(404, json={"detail": "Not Found"}), Unreachable, "is there an AgentGym environment server"),
        (httpx.Response(301, headers={"location": "/elsewhere"}), Unreachable, "301"),
        (httpx.Response(418, json={"code": "NEW_CODE", "message": "of a newer server"}), EnvironmentFailure, "newer"),
    ],
)
def test_a_reply_that_is_none_is_shown(reply, failure, excerpt):
    async def main() -> None:
        async with served(lambda _: reply) as client:
            with pytest.raises(failure, match=excerpt):
                await client.session().reset()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("results", "complaint"),
    [
        ([], "0 of 2 steps"),
        ([{"observation": {"text": "x"}, "reward": 0, "step": 7}] * 2, "answered step 7"),
        ([{"observation": {"text": "x"}, "reward": None, "step": 1}] * 2, "reward None"),
        ([{"nonsense": 1}] * 2, "protocol forbids"),
    ],
)
def test_a_batch_answered_with_garbage(results, complaint):
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/step_many":
            return httpx.Response(200, json={"results": results})
        return httpx.Response(200, json={"observation": {"text": "x"}, "session_id": "s"})

    async def main() -> None:
        async with served(answer) as client:
            sessions = [client.session(), client.session()]
            await asyncio.gather(*(session.reset() for session in sessions))
            for failure in await asyncio.gather(*(s.step("x") for s in sessions), return_exceptions=True):
                assert isinstance(failure, EnvironmentCrashed)
                assert complaint in str(failure)

    asyncio.run(main())


def test_a_server_without_step_many_gets_single_steps():
    app = app_of()
    inner = httpx.ASGITransport(app)
    paths: list[str] = []

    class Older(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            paths.append(request.url.path)
            reply = await inner.handle_async_request(request)
            if request.url.path == "/metadata":
                content = json.loads(await reply.aread())
                content["agentgym"]["extensions"] = []
                content["agentgym"]["spec"]["of_a_newer_server"] = 1
                return httpx.Response(200, json=content)
            return reply

    async def main() -> None:
        async with EnvClient(URL, transport=Older()) as client:
            sessions = [client.session() for _ in range(3)]
            await asyncio.gather(*(session.reset() for session in sessions))
            await asyncio.gather(*(session.step("x") for session in sessions))

    asyncio.run(main())
    assert paths.count("/step") == 3


def test_servers_that_are_not_ours():
    def metadata(content: dict[str, Any]) -> EnvClient:
        return EnvClient(URL, transport=httpx.MockTransport(lambda _: httpx.Response(200, json=content)))

    async def enter(client: EnvClient) -> None:
        async with client:
            pass

    with pytest.raises(ConfigError, match="without AgentGym's extension"):
        asyncio.run(enter(metadata({"name": "chess"})))
    with pytest.raises(ConfigError, match="speaks protocol 9"):
        asyncio.run(enter(metadata({"name": "x", "agentgym": {"protocol": "9", "spec": {}}})))
    with pytest.raises(ConfigError, match="cannot read"):
        asyncio.run(enter(metadata({"name": "x", "agentgym": {"protocol": "1", "spec": {}}})))
    for url in ("ftp://x", "nonsense", "http://", "http://x:port"):
        with pytest.raises(UsageError, match="URL"):
            EnvClient(url)
    with pytest.raises(UsageError, match="not connected"):
        client_of(app_of()).session()


def test_an_env_named_in_any_way():
    async def run(name: str, **kwargs: Any) -> list[Any]:
        async with connect(name, **kwargs) as env:
            assert env.spec.id == "echo"
            return [await episode(env.session()) for _ in range(2)]

    local = asyncio.run(run(ECHO))
    assert local == asyncio.run(run(URL, transport=httpx.ASGITransport(app_of())))
    assert local == asyncio.run(run(f"{URL}/envs/echo/", transport=httpx.ASGITransport(app_of())))
    with pytest.raises(UnknownEnvironment):
        asyncio.run(run("no-such-env"))
