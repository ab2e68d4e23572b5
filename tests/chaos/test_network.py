"""Requests and replies that are lost, stalled, late, repeated and cut on their way."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from chaos.ledger import play_by_both_wires
from chaos.proxy import Proxy, Weather, http_message

from agentgym.clients.client import EnvClient
from agentgym.errors import EnvironmentCrashed
from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.web.run import serve_in_thread


def test_a_bad_network(tmp_path, chaos):
    async def main():
        proxy = Proxy(server.port, Weather(), seed=3)
        async with proxy.listening() as url:
            urls = [f"{url}/envs/inline-ledger", f"{url}/envs/ledger"]
            return proxy.fates, await play_by_both_wires(
                urls, chaos.seeds(64), tmp_path / "ledger", timeout_s=1.0, retries=8
            )

    envs = ("chaos.envs:InlineLedger", "chaos.envs:Ledger")
    with chaos.server("agentgym_servers.env_server.app", *envs, "--lease-s", "6") as server:
        fates, tally = asyncio.run(main())
        chaos.settled(server, tally)
    for fate in ("lose", "delay", "twice", "cut"):
        assert fates[fate] > 0, fates
    assert tally.completed > tally.episodes / 2, tally


def test_a_duplicate_reply_is_not_taken_for_another_sessions():
    """Over one kept connection, the reply before comes again in place of the one that is asked for."""
    talks: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.create_task(stutter(reader, writer)))

    async def stutter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", port)
        before = b""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request, _ = await http_message(reader)
                writer.write(before)
                their_writer.write(request)
                reply, _ = await http_message(their_reader)
                writer.write(reply)
                before = reply if request.startswith(b"POST /step") else b""
        for one in (writer, their_writer):
            one.transport.abort()

    async def main():
        server = await asyncio.start_server(begin, "127.0.0.1", 0)
        async with server:
            client = EnvClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", wire="http")
            async with client:
                first, second = client.session(), client.session()
                for task, session in enumerate((first, second)):
                    await session.reset(options={"task": task})
                assert "mine" in (await first.step("mine")).observation
                with pytest.raises(EnvironmentCrashed, match="another session"):
                    await second.step("hers")
        await asyncio.gather(*talks)

    with serve_in_thread(create_app({"echo": EchoEnv})) as url:
        port = int(url.rpartition(":")[2])
        asyncio.run(main())
