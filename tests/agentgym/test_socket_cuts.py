"""The client's socket to a real server over a network that cuts: the episodes are those of a clean run."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import pytest

from agentgym.clients.client import EnvClient
from agentgym.errors import AtCapacity, EpisodeLost, Unreachable
from agentgym.session import LocalSession
from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.web.run import serve_in_thread


class Counted(EchoEnv):
    """Every step that was taken, by all of them."""

    steps = 0
    lock = threading.Lock()

    def step(self, action: Any) -> Any:
        with Counted.lock:
            Counted.steps += 1
        return super().step(action)


class Slow(Counted):
    """Long enough for the client to come back while the step is running."""

    def __init__(self) -> None:
        super().__init__(inline=False, latency_s=0.1)


class Cutter:
    """A TCP proxy. For each piece that a client sends over its WebSocket, `plan` says what becomes of it: "ok", or the
    connection is cut: "lost request" before it is passed on, "half request" in its middle, "lost reply" once the
    server has answered, "half reply" in the middle of the answer."""

    def __init__(self, url: str, plan: Iterable[str]) -> None:
        self.upstream = int(url.rpartition(":")[2])
        self.plan = iter(plan)
        self.cuts = 0
        self.tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        fault = ["ok"]
        answers = asyncio.create_task(self.pass_back(back_reader, writer, fault))
        try:
            await self.pass_on(reader, back_writer, fault, answers)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            answers.cancel()
            self.cuts += fault[0] != "ok"
            for one in (writer, back_writer):
                one.transport.abort()
            self.tasks.discard(task)

    async def pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: list[str], answers: asyncio.Task[None]
    ) -> None:
        upgraded = False
        while piece := await reader.read(2**20):
            if upgraded:
                fault[0] = next(self.plan, "ok")
            upgraded = upgraded or b"Upgrade: websocket" in piece
            if fault[0] == "lost request":
                return
            writer.write(piece[: len(piece) // 2] if fault[0] == "half request" else piece)
            await writer.drain()
            if fault[0] == "half request":
                return
            if fault[0] != "ok":
                await answers
                return

    async def pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: list[str]) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(2**20):
                if fault[0] == "half reply":
                    writer.write(piece[: len(piece) // 2])
                    await writer.drain()
                if fault[0] != "ok":
                    return
                writer.write(piece)


@contextlib.asynccontextmanager
async def cutting(url: str, plan: Iterable[str]) -> AsyncIterator[tuple[Cutter, str]]:
    cutter = Cutter(url, plan)
    async with await asyncio.start_server(cutter, "127.0.0.1", 0) as listener:
        try:
            yield cutter, f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        finally:
            for task in cutter.tasks:
                task.cancel()
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve_in_thread(create_app({"echo": Counted, "slow": Slow})) as url:
        yield url


async def episode(session: Any, task: int) -> list[Any]:
    steps = [await session.reset(seed=task, options={"split": "train", "task": task})]
    for action in ("wrong", "", "apple", "brook", "cloud"):
        steps.append(await session.step(action))
        if steps[-1].terminated:
            break
    return steps


def local(task: int) -> list[Any]:
    return asyncio.run(episode(LocalSession(EchoEnv()), task))


FAULTS = ("lost request", "half request", "lost reply", "half reply")


@pytest.mark.parametrize("env", ["echo", "slow"])
@pytest.mark.parametrize("fault", [*FAULTS, "all"])
def test_however_the_network_cuts_every_step_acts_once(url, env, fault):
    faults = FAULTS if fault == "all" else (fault,)
    plan = itertools.islice(itertools.cycle(part for one in faults for part in (one, "ok", "ok")), 30)

    async def main() -> list[Any]:
        async with (
            cutting(url, plan) as (cutter, cut_url),
            EnvClient(f"{cut_url}/envs/{env}", wire="socket", retries=12) as client,
        ):
            episodes = await asyncio.gather(*(episode(client.session(), task) for task in range(4)))
            assert cutter.cuts >= 2
            return episodes

    before = Counted.steps
    episodes = asyncio.run(main())
    assert episodes == [local(task) for task in range(4)]
    assert Counted.steps - before == sum(len(steps) - 1 for steps in episodes)


def test_a_network_that_always_cuts_is_given_up(url):
    async def main() -> None:
        async with cutting(url, ["ok", *["lost reply"] * 50]) as (cutter, cut_url):
            client = EnvClient(cut_url, wire="socket", retries=2)
            await client.fetch_spec()
            session = client.session()
            await session.reset()
            with pytest.raises(Unreachable, match="3 attempts"):
                await session.step("x")
            cutter.plan = iter(())  # mended: the step was taken, and is not taken twice
            assert (await session.step("x")).info["success"] is False
            await client.close()

    before = Counted.steps
    asyncio.run(main())
    assert Counted.steps == before + 1


def test_sessions_that_idle_through_a_cut_do_not_notice(url):
    async def main() -> None:
        async with cutting(url, ()) as (_, cut_url), EnvClient(cut_url, wire="socket") as client:
            session = client.session()
            await session.reset(options={"task": 0})
            client._env.wire._socket._transport.abort()  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
            assert (await session.step("apple")).observation == "You said: apple\nSay: brook"

    asyncio.run(main())


def test_a_server_that_restarts_loses_the_episodes_and_says_so():
    async def main() -> list[Any]:
        with contextlib.ExitStack() as first:
            url = first.enter_context(serve_in_thread(create_app({"echo": Counted})))
            client = EnvClient(url, wire="socket", retries=10)
            await client.fetch_spec()
            sessions = [client.session() for _ in range(3)]
            await asyncio.gather(*(session.reset() for session in sessions))
            await asyncio.to_thread(first.pop_all().close)
        with serve_in_thread(create_app({"echo": Counted}), port=int(url.rpartition(":")[2])):
            for failure in await asyncio.gather(*(s.step("x") for s in sessions), return_exceptions=True):
                assert isinstance(failure, EpisodeLost)
                assert "was it restarted" in str(failure)
            with pytest.raises(EpisodeLost):
                await sessions[0].step("x")
            played = await episode(sessions[0], 1)
            await client.close()
            return played

    before = Counted.steps
    assert asyncio.run(main()) == local(1)
    assert Counted.steps == before + len(local(1)) - 1


class NoSockets:
    """A proxy that speaks nothing but HTTP."""

    def __init__(self, app: Any) -> None:
        self.app, self.state = app, app.state

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            await self.app(scope, receive, send)


def test_where_sockets_are_refused_requests_are_used(caplog):
    async def main(url: str, **wire: Any) -> Any:
        async with EnvClient(url, **wire) as client:
            return await asyncio.gather(*(episode(client.session(), task) for task in range(4)))

    with serve_in_thread(NoSockets(create_app({"echo": Counted}))) as url:
        assert asyncio.run(main(url)) == [local(task) for task in range(4)]
        with pytest.raises(Unreachable, match="opens no socket"):
            asyncio.run(main(url, wire="socket"))
    assert "going on with requests" in caplog.text


@pytest.mark.parametrize("wire", ["socket", "http"])
def test_a_server_without_room_gets_one_request(wire):
    async def main(url: str) -> None:
        async with EnvClient(url, wire=wire) as client, EnvClient(url, wire=wire, capacity_wait_s=0.2) as impatient:
            first, second = client.session(), client.session()
            await first.reset()
            with pytest.raises(AtCapacity):
                await impatient.session().reset()
            waiting = asyncio.create_task(second.reset())
            await asyncio.sleep(0.1)
            await first.reset()  # needs no room, and is not held up by the one that does
            assert not waiting.done()
            await first.step("x")
            await first.close()
            assert (await waiting).observation.startswith("Say")
            if wire == "socket":
                assert client._env.wire._last_id == 5  # type: ignore[union-attr]

    with serve_in_thread(create_app({"echo": Counted}, max_sessions=1)) as url:
        asyncio.run(main(url))
