"""Steps per second through our client and server, against one plain httpx POST a step, in the same run.

    python benchmarks/wire.py

Client and server are two processes on this machine; the world is EchoEnv, which costs next to nothing, so this is the
price of the wire. "ours" counts steps alone, as "plain httpx" does; "with resets" is whole episodes of eight steps.
Plain httpx is what a script would do with one shared AsyncClient; without the package `sniffio` installed, httpcore
repeats a failing import in every request, which is part of what is measured. The ratio is what
travels to other machines, not the absolute figures.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import httpx

from agentgym.client import EnvClient, server_process

WORLD = "agentgym.testing:EchoEnv"


async def ours(url: str, sessions: int, seconds: float) -> float:
    """Steps per second of `sessions` sessions of one EnvClient, resets included."""
    async with EnvClient(url) as client:
        stop = time.perf_counter() + seconds

        async def play() -> int:
            session, steps = client.session(), 0
            while time.perf_counter() < stop:
                step = await session.reset(options={"task": steps % 8})
                while not (step.terminated or step.truncated) and time.perf_counter() < stop:
                    step = await session.step("no")
                    steps += 1
            await session.close()
            return steps

        began = time.perf_counter()
        counts = await asyncio.gather(*(play() for _ in range(sessions)))
        return sum(counts) / (time.perf_counter() - began)


async def steps_only(url: str, sessions: int, seconds: float) -> float:
    """The same, measuring steps alone: the time that resets take is left out."""
    async with EnvClient(url) as client:
        players = [client.session() for _ in range(sessions)]
        steps, spent = 0, 0.0
        while spent < seconds:
            await asyncio.gather(*(player.reset(options={"task": 0}) for player in players))
            began = time.perf_counter()

            async def play(player: object) -> None:
                for _ in range(8):
                    await player.step("no")  # type: ignore[attr-defined]

            await asyncio.gather(*(play(player) for player in players))
            spent += time.perf_counter() - began
            steps += 8 * sessions
        return steps / spent


async def plain(url: str, sessions: int, seconds: float) -> float:
    """Steps per second with one httpx POST a step on one shared AsyncClient."""
    async with httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=None), verify=False) as client:
        ids = [(await client.post("/reset", json={"index": 0})).json()["session_id"] for _ in range(sessions)]
        steps, spent = 0, 0.0
        while spent < seconds:
            for session_id in ids:
                (await client.post("/reset", json={"index": 0, "session_id": session_id})).raise_for_status()
            began = time.perf_counter()

            async def play(session_id: str) -> None:
                for index in range(8):
                    body = {"session_id": session_id, "action": {"text": "no"}, "step": index}
                    (await client.post("/step", json=body)).raise_for_status()

            await asyncio.gather(*map(play, ids))
            spent += time.perf_counter() - began
            steps += 8 * sessions
        return steps / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved; the median is printed")
    options = parser.parse_args()
    print(f"{'sessions':>8} {'ours':>9} {'with resets':>12} {'plain httpx':>12} {'ratio':>6}   steps/s")
    with server_process([WORLD]) as url:
        for sessions in (1, 32, 128):
            rounds = []
            for _ in range(options.rounds):
                rounds.append([asyncio.run(run(url, sessions, options.seconds)) for run in (steps_only, ours, plain)])
            steps, whole, single = (sorted(column)[len(rounds) // 2] for column in zip(*rounds))
            print(f"{sessions:>8} {steps:>9,.0f} {whole:>12,.0f} {single:>12,.0f} {steps / single:>6.1f}", flush=True)


if __name__ == "__main__":
    main()
