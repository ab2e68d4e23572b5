"""The gateway is killed and started again; the disk under its database is full."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from chaos.ledger import now_and_then, play_by_both_wires
from chaos.processes import Server, wait_for

LEDGER = "chaos.envs:Ledger"


def register(gateway: Server, status: int, **body: object) -> dict[str, Any]:
    reply = httpx.post(f"{gateway.url}/environments", json={"check_tasks": 1, **body}, timeout=60)
    assert reply.status_code == status, reply.text
    return reply.json()


def fill(file: Path) -> None:
    """Write until there is no room."""
    with file.open("wb", buffering=0) as writing, contextlib.suppress(OSError):
        while writing.write(b"x" * 512):
            pass


def test_a_gateway_killed_and_started_again(tmp_path, chaos):
    """The sessions of a server that it did not start survive it; those of its own child processes end with it."""
    ledger = tmp_path / "ledger"

    async def restart() -> None:
        gateway.kill()
        await asyncio.to_thread(gateway.start)

    async def main():
        given, own = ([f"{gateway.url}/envs/{name}"] for name in ("given", "own"))
        async with now_and_then(ledger, chaos.every(120), restart):
            return await asyncio.gather(
                play_by_both_wires(given, chaos.seeds(24), ledger, pace_s=0.02, retries=9),
                play_by_both_wires(own, chaos.seeds(24), ledger, pace_s=0.02, retries=9),
            )

    with (
        chaos.server("agentgym_servers.env_server.app", LEDGER, "--lease-s", "15") as server,
        chaos.server("agentgym", "gateway", "--database", f"sqlite:///{tmp_path / 'gateway.db'}") as gateway,
    ):
        register(gateway, 201, name="given", url=server.url)
        register(gateway, 201, name="own", entry_point=LEDGER)
        given, own = asyncio.run(main())
        chaos.settled(gateway, own, "/envs/own/health")
        chaos.settled(server, given)
    assert given.completed > given.episodes * 3 / 4, given
    assert own.completed > own.episodes / 4, own
    assert own.failed["EPISODE_LOST"] > 0, own


def test_a_full_disk_under_the_gateways_database(tmp_path, chaos):
    """What cannot be written is refused with a reason, nothing is half-registered, and the environments go on."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no user namespace to mount a small file system in")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = 'mount -t tmpfs -o size=256k tmpfs "$0" && exec "$@"'
    within = ("unshare", "-rm", "sh", "-c", mounting, str(disk))
    database = f"sqlite:///{disk / 'gateway.db'}"
    with (
        chaos.server("agentgym_servers.env_server.app", "chaos.envs:InlineLedger", "--lease-s", "4") as server,
        chaos.server("agentgym", "gateway", "--database", database, within=within) as gateway,
    ):
        register(gateway, 201, name="given", url=server.url)
        filling = Path(f"/proc/{gateway.pid}/root{disk}/filling")
        fill(filling)

        refused = register(gateway, 503, name="own", entry_point="chaos.envs:InlineLedger")
        assert refused["code"] == "DATABASE_UNAVAILABLE"
        assert "full" in refused["message"]
        removal = httpx.delete(f"{gateway.url}/environments/given", timeout=60)
        assert (removal.status_code, removal.json()["code"]) == (503, "DATABASE_UNAVAILABLE"), removal.text
        assert [env["name"] for env in gateway.get("/environments")["environments"]] == ["given"]
        wait_for(lambda: not gateway.left_behind(), 20, lambda: f"no process: {gateway.left_behind()}")
        tally = asyncio.run(play_by_both_wires([f"{gateway.url}/envs/given"], chaos.seeds(16), tmp_path / "ledger"))
        assert tally.completed == tally.episodes, tally

        filling.unlink()
        register(gateway, 201, name="own", entry_point="chaos.envs:InlineLedger")
        chaos.settled(gateway, tally, "/envs/given/health")
