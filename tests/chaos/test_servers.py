"""The server is killed and started again at the same port."""

from __future__ import annotations

import asyncio
import random

from chaos.ledger import now_and_then, play_by_both_wires
from chaos.processes import wait_for

from agentgym.clients.client import EnvClient


def spawning(chance: random.Random) -> str | None:
    """Environments with processes of their own, which must not outlive the server either."""
    return "spawn" if chance.random() < 1 / 4 else None


def test_a_server_killed_and_started_again(tmp_path, chaos):
    ledger = tmp_path / "ledger"

    async def restart() -> None:
        server.kill()
        await asyncio.to_thread(server.start)

    async def main():
        async with now_and_then(ledger, chaos.every(120), restart):
            return await play_by_both_wires(
                [server.url], chaos.seeds(48), ledger, trouble=spawning, pace_s=0.02, retries=8
            )

    options = ("--lease-s", "3", "--workers", "2")
    with chaos.server("agentgym_servers.env_server.app", "chaos.envs:Ledger", *options) as server:
        tally = asyncio.run(main())
        chaos.settled(server, tally)
    assert tally.failed["EPISODE_LOST"] + tally.failed["UNREACHABLE"] > 0, tally  # the latter where it starts slowly
    assert tally.completed > tally.episodes / 4, tally


def test_a_killed_server_ends_hanging_envs_and_their_children(tmp_path, chaos):
    async def main():
        async with EnvClient(server.url) as client:
            spawning, hanging = client.session(), client.session()
            await spawning.reset(seed=1, options={"trouble": "spawn"})
            await spawning.step("0 left")
            await hanging.reset(seed=1, options={"trouble": "hang 60", "ledger": str(tmp_path / "ledger")})
            step = asyncio.create_task(hanging.step("0 left"))
            while not (tmp_path / "ledger").exists():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)  # now it holds the interpreter's lock
            assert len(server.left_behind()) >= 2
            server.kill()
            step.cancel()

    with chaos.server("agentgym_servers.env_server.app", "chaos.envs:Ledger", "--workers", "1") as server:
        asyncio.run(main())
        wait_for(lambda: not server.left_behind(), 20, lambda: f"no processes: {server.left_behind()}")
