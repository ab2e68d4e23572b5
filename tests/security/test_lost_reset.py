"""A reset whose reply is lost is asked for again after the client's timeout, over either wire, and acts once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from chaos.proxy import frame, http_message

from agentgym.clients.client import EnvClient
from agentgym.errors import AtCapacity, Unreachable
from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.web.run import serve_in_thread

TIMEOUT_S = 1.0
LIVENESS_S = 20.0
"""Far less than the 60 s for which a server without room is waited for."""


class Counted(EchoEnv):
    resets = 0

    def reset(self, **call: Any) -> Any:
        type(self).resets += 1
        return super().reset(**call)


@pytest.fixture(autouse=True)
def counted() -> None:
    Counted.resets = 0


class Swallower:
    """A proxy that keeps back replies with a session's id: the first `count`; with `stall`, all that comes after each
    on its connection as well."""

    def __init__(self, port: int, count: int, stall: bool) -> None:
        self._port, self._stall = port, stall
        self.left = count
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0.02)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.get_running_loop().create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._port)
        pumps = [
            asyncio.ensure_future(self._pass(reader, their_writer, back=False)),
            asyncio.ensure_future(self._pass(their_reader, writer, back=True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for one in (writer, their_writer):
                one.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: bool) -> None:
        framed = stalled = False
        while True:
            message, upgraded = await (frame(reader) if framed else http_message(reader))
            framed = framed or upgraded
            if back and self.left and b'"session_id"' in message:
                self.left -= 1
                stalled = self._stall
            elif not stalled:
                writer.write(message)


@contextlib.asynccontextmanager
async def swallowing(url: str, count: int, *, stall: bool = False) -> AsyncIterator[tuple[Swallower, str]]:
    proxy = Swallower(int(url.rpartition(":")[2]), count, stall)
    async with proxy.listening() as proxy_url:
        yield proxy, proxy_url


@pytest.mark.parametrize("wire", ["http", "socket"])
@pytest.mark.parametrize(("count", "stall"), [(1, False), (1, True), (3, False)])
def test_a_lost_reset_is_retried_after_the_timeout(wire, count, stall):
    async def main(url: str) -> float:
        async with (
            swallowing(url, count, stall=stall) as (proxy, cut_url),
            EnvClient(cut_url, wire=wire, timeout_s=TIMEOUT_S) as client,
        ):
            session, started = client.session(), time.monotonic()
            step = await session.reset(seed=1, options={"task": 0})
            seconds = time.monotonic() - started
            assert proxy.left == 0
            assert str(step.observation).startswith("Say")
            assert str((await session.step("apple")).observation).startswith("You said: apple")
            await session.close()
            return seconds

    with serve_in_thread(create_app({"echo": Counted})) as url:
        assert asyncio.run(main(url)) < LIVENESS_S
    assert Counted.resets == 1


def test_other_sessions_of_the_socket_go_on_meanwhile():
    async def main(url: str) -> None:
        async with (
            swallowing(url, 0) as (proxy, cut_url),
            EnvClient(cut_url, wire="socket", timeout_s=TIMEOUT_S) as client,
        ):
            other, session = client.session(), client.session()
            await other.reset(options={"task": 0})
            connection = client._env.wire._socket  # type: ignore[union-attr]
            proxy.left = 1
            lost = asyncio.create_task(session.reset(options={"task": 1}))
            while proxy.left:
                await asyncio.sleep(0.01)
            assert str((await other.step("apple")).observation).startswith("You said: apple")
            assert str((await lost).observation).startswith("Say")
            assert client._env.wire._socket is connection, "one lost reply is no dead socket"  # type: ignore[union-attr]

    with serve_in_thread(create_app({"echo": Counted})) as url:
        asyncio.run(main(url))
    assert Counted.resets == 2


@pytest.mark.parametrize("wire", ["http", "socket"])
def test_a_session_keeps_its_place_in_the_queue(wire):
    async def main(url: str) -> None:
        async with EnvClient(url, wire=wire, timeout_s=0.3) as client:
            first, second, third = (client.session() for _ in range(3))
            await first.reset()
            waiting = asyncio.create_task(second.reset())
            await asyncio.sleep(0.1)
            later = asyncio.create_task(third.reset())
            await asyncio.sleep(1.2)
            assert not waiting.done()
            await first.close()
            await waiting
            assert not later.done(), "first come, first served"
            await second.close()
            await later

    with serve_in_thread(create_app({"echo": Counted}, max_sessions=1)) as url:
        asyncio.run(main(url))
    assert Counted.resets == 3


@pytest.mark.parametrize("wire", ["http", "socket"])
def test_the_queue_ends_with_the_servers_own_refusal(wire):
    async def main(url: str) -> None:
        async with EnvClient(url, wire=wire, timeout_s=0.3, capacity_wait_s=1.0) as client:
            await client.session().reset()
            with pytest.raises(AtCapacity):
                await client.session().reset()

    with serve_in_thread(create_app({"echo": Counted}, max_sessions=1)) as url:
        asyncio.run(main(url))


@pytest.mark.parametrize("wire", ["http", "socket"])
def test_a_silent_server_is_given_up_after_the_queue_time(wire):
    async def main(url: str) -> None:
        async with (
            swallowing(url, 10**9) as (_, cut_url),
            EnvClient(cut_url, wire=wire, timeout_s=0.3, capacity_wait_s=1.0) as client,
        ):
            with pytest.raises(Unreachable, match=r"gave no answer in 1\.3 s"):
                await client.session().reset()

    with serve_in_thread(create_app({"echo": Counted})) as url:
        asyncio.run(main(url))
    assert Counted.resets == 1
