"""Environments that crash, hang, leak and print garbage; worker processes that are killed."""

from __future__ import annotations

import asyncio
import random

from chaos.ledger import now_and_then, play_by_both_wires
from chaos.processes import kill

TROUBLES = (
    "exit 3",
    "signal 11",
    "signal 9",
    "sleep 30",
    "hang 30",
    "leak",
    "raise",
    "interrupt",
    "babble",
    "print",
    "spawn",
)


def trouble(chance: random.Random) -> str | None:
    """In one episode of eight."""
    return chance.choice(TROUBLES) if chance.random() < 1 / 8 else None


def test_envs_that_misbehave(tmp_path, chaos):
    options = ("--lease-s", "3", "--workers", "2", "--worker-memory-mb", "512")
    with chaos.server("agentgym_servers.env_server.app", "chaos.envs:Ledger", *options) as server:
        tally = asyncio.run(play_by_both_wires([server.url], chaos.seeds(48), tmp_path / "ledger", trouble=trouble))
        chaos.settled(server, tally)
    assert tally.failed["ENVIRONMENT_CRASHED"] > 0, tally
    assert tally.completed > tally.episodes / 4, tally


def test_workers_killed(tmp_path, chaos):
    ledger, chance = tmp_path / "ledger", random.Random(1)

    async def kill_one() -> None:
        if workers := server.workers():
            kill(chance.choice(workers))

    async def main():
        async with now_and_then(ledger, chaos.every(120), kill_one):
            return await play_by_both_wires([server.url], chaos.seeds(48), ledger, pace_s=0.02)

    options = ("--lease-s", "3", "--workers", "2")
    with chaos.server("agentgym_servers.env_server.app", "chaos.envs:Ledger", *options) as server:
        tally = asyncio.run(main())
        chaos.settled(server, tally)
    # During a call the environment has crashed; between two the episode is lost, and says why.
    assert tally.failed["ENVIRONMENT_CRASHED"] or "killed by SIGKILL" in tally.messages["EPISODE_LOST"], tally
    assert tally.completed > tally.episodes / 4, tally
