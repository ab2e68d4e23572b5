"""Every world's pace and weight, in this process and over HTTP, beside the third party's own where a world wraps one.

    python benchmarks/worlds.py                       every installed world
    python benchmarks/worlds.py keydoor textworld --seconds 5

For each world, by a random policy (the expert where actions cannot be listed), over episodes of the first split:

reset, ms      median of resets to different tasks
steps/s        in this process, choosing excluded; over HTTP, one session, everything included
HTTP / local   time of a step over HTTP as a multiple of the local one
memory, MB     of one further session: (server with six sessions - server with one) / 5, proportional set size of all
               its processes
original       steps/s of the wrapped library driven directly with the same actions in the same run, and our overhead:
               time of our step / time of its step - 1, local. Where the library's step takes over a millisecond, the
               world itself dominates, and the benchmark fails when the overhead is above 10 %.

A world whose package or program is missing is left out and named.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from agentgym import load
from agentgym.client import EnvClient, server_process
from agentgym.env import Action, Env
from agentgym.errors import AgentGymError, MissingDependency
from agentgym.session import Step

MOST_OVERHEAD = 0.10
DOMINATES_S = 1e-3
Choose = Callable[[Any, dict[str, Any]], Action]


@dataclass
class Pace:
    """Times of one way to drive a world, in seconds."""

    resets: list[float]
    steps: list[float]

    @property
    def reset_ms(self) -> float:
        return 1000 * median(self.resets)

    @property
    def step_s(self) -> float:
        return sum(self.steps) / max(len(self.steps), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worlds", nargs="*", help="ids  [default: all]")
    parser.add_argument("--seconds", type=float, default=3.0, help="of stepping, for each world and way")
    options = parser.parse_args()
    print(
        "| world | reset, ms | steps/s | over HTTP: reset, ms | steps/s | HTTP / local | memory, MB "
        "| original, steps/s | overhead |\n|---|---|---|---|---|---|---|---|---|"
    )
    slow = [name for name in options.worlds or load.names() if not measure(name, options.seconds)]
    if slow:
        sys.exit(f"more than {100 * MOST_OVERHEAD:.0f} % over the original: {', '.join(slow)}")


def measure(name: str, seconds: float) -> bool:
    """Prints a world's line; False when its overhead is too great."""
    try:
        env = load.make(name)
    except MissingDependency as error:
        print(f"| {name} | left out: {error} |", flush=True)
        return True
    try:
        here, actions = local_pace(env, seconds)
        theirs = original_pace(name, env, actions, seconds)
    except AgentGymError as error:  # a program that is missing is found out by the first reset
        print(f"| {name} | left out: {error} |", flush=True)
        return True
    finally:
        env.close()
    there, memory = asyncio.run(remote_pace(name, actions, seconds))
    overhead = None if theirs is None else here.step_s / theirs.step_s - 1
    shown = "| |" if theirs is None or overhead is None else f"| {1 / theirs.step_s:,.0f} | {100 * overhead:+.1f} % |"
    print(
        f"| {name} | {here.reset_ms:,.2f} | {1 / here.step_s:,.0f} | {there.reset_ms:,.2f} | {1 / there.step_s:,.0f} "
        f"| {there.step_s / here.step_s:.1f} | {memory:.1f} {shown}",
        flush=True,
    )
    return overhead is None or theirs is None or theirs.step_s < DOMINATES_S or overhead <= MOST_OVERHEAD


def choices(env: Env) -> Choose:
    """What to do next: drawn from what is offered; where nothing is, the expert's."""
    random = np.random.default_rng(0)

    def choose(env: Any, info: dict[str, Any]) -> Action:
        offered = info.get("available_actions") or env.env_spec.actions
        return offered[int(random.integers(len(offered)))] if offered else env.expert()

    return choose


def local_pace(env: Env, seconds: float) -> tuple[Pace, list[list[Action]]]:
    """Plays for `seconds`, and what was done in each episode (task i of the first split is the i-th)."""
    pace, played, choose = Pace([], []), [], choices(env)
    for options in tasks(env):
        began = time.perf_counter()
        _, info = env.reset(seed=0, options=options)
        pace.resets.append(time.perf_counter() - began)
        played.append([])
        over = False
        while not over:
            action = choose(env, info)
            began = time.perf_counter()
            _, _, terminated, truncated, info = env.step(action)
            pace.steps.append(time.perf_counter() - began)
            played[-1].append(action)
            over = terminated or truncated
        if sum(pace.steps) + sum(pace.resets) > seconds:
            return pace, played
    raise AssertionError("tasks() is endless")


def tasks(env: Env) -> Iterator[dict[str, Any]]:
    split, size = next(iter(env.env_spec.splits.items()))
    return ({"split": split, "task": i % size} for i in itertools.count())


async def remote_pace(name: str, actions: list[list[Action]], seconds: float) -> tuple[Pace, float]:
    """The same episodes over HTTP, and megabytes of a further session."""
    pace = Pace([], [])
    with server_process([name]) as url:
        async with EnvClient(url, timeout_s=120) as client:
            session = client.session()
            spec = client.spec
            split, size = next(iter(spec.splits.items()))
            for i, episode in enumerate(actions):
                began = time.perf_counter()
                await session.reset(seed=0, options={"split": split, "task": i % size})
                pace.resets.append(time.perf_counter() - began)
                for action in episode:
                    began = time.perf_counter()
                    step: Step = await session.step(action)
                    pace.steps.append(time.perf_counter() - began)
                    if step.terminated or step.truncated:
                        break
                if sum(pace.steps) + sum(pace.resets) > seconds:
                    break
            server = server_pids()
            alone = memory_mb(server)
            more = [client.session() for _ in range(5)]
            for number, other in enumerate(more):
                await other.reset(seed=0, options={"split": split, "task": number % size})
            return pace, (memory_mb(server_pids()) - alone) / len(more)


def server_pids() -> set[int]:
    """This process's descendants: the server and whatever it started."""
    return set(descendants(Path("/proc/self").resolve().name))


def descendants(pid: int | str) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)
            yield from descendants(child)


def memory_mb(pids: set[int]) -> float:
    """Proportional set size: pages that several processes share are split among them."""
    total = 0.0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return total


def original_pace(name: str, env: Env, actions: list[list[Action]], seconds: float) -> Pace | None:
    """The wrapped library's own pace on the same actions; None for a world that is all ours."""
    return None


if __name__ == "__main__":
    main()
