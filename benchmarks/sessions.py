"""Thousands of sessions at once of an environment that waits: is one lost, and does memory stay as it is?

    python benchmarks/sessions.py

Each round opens 4,096 sessions, plays 20 steps of 50 ms in all of them at once over HTTP with our client, and closes
them all. The environment sleeps in a worker process, a thread a session, as a browser's driver would. Exits with 1 when
an episode is lost, or when the memory of server and workers grew by more than 5 % from the second round to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import os
import sys
import time
from collections.abc import Awaitable, Iterable
from pathlib import Path

from agentgym.clients.client import EnvClient, server_process
from agentgym.session import Session

ENV = "agentgym.testing:ChaosEnv"
MOST_GROWTH = 0.05


async def begin(session: Session, task: int) -> None:
    await session.reset(seed=task, options={"task": task % 64})


async def play(session: Session, steps: int) -> None:
    for _ in range(steps):
        assert (await session.step("sleep 0.05")).observation == "None"


async def all_of(calls: Iterable[Awaitable[None]]) -> int:
    """How many came to their end."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for error, count in collections.Counter(str(result) for result in results if result is not None).most_common(5):
        print(f"  lost {count}: {error}", file=sys.stderr)
    return results.count(None)


def memory_mb(pid: int) -> float:
    """Resident megabytes of a process and all its descendants."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20 + sum(memory_mb(int(child)) for child in children)


async def measure(url: str, pid: int, rounds: int, sessions: int, steps: int) -> bool:
    peaks, lost = [], 0
    for number in range(1, rounds + 1):
        async with EnvClient(url, timeout_s=120) as client:
            opened = [client.session() for _ in range(sessions)]
            await all_of(begin(session, task) for task, session in enumerate(opened))
            began = time.perf_counter()
            playing = asyncio.ensure_future(all_of(play(session, steps) for session in opened))
            peak = memory_mb(pid)
            while not playing.done():
                await asyncio.wait([playing], timeout=0.5)
                peak = max(peak, memory_mb(pid))
            seconds, finished = time.perf_counter() - began, playing.result()
            await all_of(session.close() for session in opened)
        lost += sessions - finished
        peaks.append(peak)
        print(
            f"round {number}: {finished} of {sessions} episodes, {finished * steps / seconds:,.0f} steps/s, "
            f"server and workers {peak:,.0f} MB at most, {memory_mb(pid):,.0f} MB after",
            flush=True,
        )
    growth = peaks[-1] / peaks[min(1, len(peaks) - 1)] - 1
    print(f"lost {lost}; memory from round 2 to {rounds}: {growth:+.1%}")
    return not lost and growth <= MOST_GROWTH


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sessions", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    with server_process([ENV], options=["--max-sessions", str(options.sessions)]) as url:
        (pid,) = map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
        good = asyncio.run(measure(url, pid, options.rounds, options.sessions, options.steps))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
