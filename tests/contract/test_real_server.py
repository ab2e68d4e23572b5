"""Our client against our server over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agentgym.clients.client import EnvClient, connect, server_process
from agentgym.errors import DeadlineExceeded, EnvironmentFailure, EpisodeLost, Unreachable
from agentgym.session import LocalSession
from agentgym.testing import EchoEnv, FaultyTransport
from agentgym_servers.env_server.app import create_app
from agentgym_servers.web.run import serve_in_thread

ECHO = "agentgym.testing:EchoEnv"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    envs = {
        "echo": EchoEnv,
        "threaded": lambda: EchoEnv(inline=False),
        "slow": lambda: EchoEnv(latency_s=0.05),
        "hangs": lambda: EchoEnv(hang_at=1, hang_s=1.0, step_deadline_s=0.2),
        "seen": lambda: EchoEnv(image=True),
    }
    with serve_in_thread(create_app(envs)) as url:
        yield url


async def episode(session: Any, task: int) -> list[Any]:
    steps = [await session.reset(seed=task, options={"split": "train", "task": task})]
    steps.append(await session.step("wrong"))
    while not (steps[-1].terminated or steps[-1].truncated):
        steps.append(await session.step(await session.solver()))
    return steps


def local(task: int) -> list[Any]:
    return asyncio.run(episode(LocalSession(EchoEnv()), task))


@pytest.mark.parametrize("wire", ["socket", "http"])
@pytest.mark.parametrize("env", ["echo", "threaded", "slow"])
def test_many_sessions_at_once_each_play_their_own_episode(url, env, wire):
    async def main() -> list[Any]:
        async with connect(f"{url}/envs/{env}", wire=wire) as client:
            return await asyncio.gather(*(episode(client.session(), index % 8) for index in range(40)))

    expected = [local(task) for task in range(8)]
    for index, steps in enumerate(asyncio.run(main())):
        assert steps == expected[index % 8]


@pytest.mark.parametrize("fault", ["lost request", "lost reply", "twice"])
def test_a_bad_network_changes_nothing(url, fault):
    async def main() -> list[Any]:
        plan = ["ok", fault] * 200
        async with EnvClient(url, transport=FaultyTransport(httpx.AsyncHTTPTransport(), plan), retries=8) as client:
            return await asyncio.gather(*(episode(client.session(), task) for task in range(8)))

    assert asyncio.run(main()) == [local(task) for task in range(8)]


def test_envs_that_hang_fail_alone(url):
    expected = local(0)

    async def main() -> None:
        async with connect(f"{url}/envs/hangs") as hanging, connect(url) as fine:
            sessions = [hanging.session() for _ in range(3)]
            for session in sessions:
                await session.reset()
                await session.step("x")
            failures, steps = await asyncio.gather(
                asyncio.gather(*(session.step("x") for session in sessions), return_exceptions=True),
                episode(fine.session(), 0),
            )
            assert [type(failure) for failure in failures] == [DeadlineExceeded] * 3
            assert steps == expected

    asyncio.run(main())


def test_images(url):
    async def main() -> None:
        async with connect(f"{url}/envs/seen") as client:
            step = await client.session().reset()
            assert step.observation["image"].shape == (8, 8, 3)

    asyncio.run(main())


def test_a_dead_server_never_restarts_an_episode_silently():
    async def main() -> None:
        with server_process([ECHO]) as url:
            client = EnvClient(url, retries=1)
            await client.fetch_spec()
            session = client.session()
            await session.reset()
            await session.step("x")
        with pytest.raises(Unreachable, match="check that the server runs"):
            await session.step("x")
        with serve_in_thread(create_app([ECHO]), port=int(url.rpartition(":")[2])):  # it comes back, knowing nothing
            with pytest.raises(EpisodeLost, match="was it restarted"):
                await session.step("x")
            with pytest.raises(EpisodeLost):
                await session.step("x")
            assert (await session.reset()).observation.startswith("Say")
            await session.step("x")
            await client.close()

    asyncio.run(main())


def test_closing_a_client_whose_server_is_gone_takes_no_time():
    async def main() -> None:
        with server_process([ECHO]) as url:
            client = EnvClient(url)
            await client.fetch_spec()
            sessions = [client.session() for _ in range(20)]
            await asyncio.gather(*(session.reset() for session in sessions))
        await asyncio.wait_for(client.close(), 2)

    asyncio.run(main())


def test_a_body_that_is_too_large_is_refused_in_words(url):
    async def main() -> None:
        async with connect(url) as client:
            session = client.session()
            await session.reset()
            with pytest.raises(EnvironmentFailure, match="16777216 bytes"):
                await session.step("x" * (17 * 2**20))

    asyncio.run(main())


def test_curl_alone_can_play(url):
    """What the documentation shows: plain JSON over plain HTTP, nothing of ours on the client's side."""
    first = httpx.post(f"{url}/reset").json()
    body = json.dumps({"session_id": first["session_id"], "action": {"text": first["observation"]["text"][5:]}})
    second = httpx.post(f"{url}/step", content=body).json()
    assert second["info"]["progress"] == pytest.approx(1 / 3)
    assert httpx.post(f"{url}/close", json={"session_id": first["session_id"]}).json()["closed"] is True
