"""Every environment's pace and weight, in this process and over HTTP, beside the third party's own where an environment
wraps one.

    python benchmarks/environments.py                       every installed environment
    python benchmarks/environments.py keydoor textworld --seconds 5

For each environment, by a random policy (the solver where actions cannot be listed), over episodes of the first split:

reset, ms      median of resets to different tasks
steps/s        in this process, choosing excluded; over HTTP, one session, everything included
HTTP / local   time of a step over HTTP as a multiple of the local one
memory, MB     of one further session: (server with six sessions - server with one) / 5, proportional set size of all
               its processes
original       steps/s of the wrapped library (TextWorld, ScienceWorld) driven directly, and our overhead: time of our
               step / time of its step - 1, local. Both play each episode again by its actions, one after the other,
               ours first every other time, in eight rounds of fresh instances; of each step the least time counts.
               Where the library's step takes over a millisecond, the environment itself dominates, and the benchmark
               fails when the overhead is above 10 %. BrowserGym, whose tasks `miniwob` has, is raced by web.py.

An environment whose package or program is missing is left out and named.
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

from agentgym import registry
from agentgym.clients.client import EnvClient, server_process
from agentgym.env import Action, Env
from agentgym.errors import AgentGymError, MissingDependency
from agentgym.session import Step

MOST_OVERHEAD = 0.10
DOMINATES_S = 1e-3
ROUNDS, RACE_STEPS = 8, 300
"""Of ours against the third party's own; and how many steps of episodes a round has at least."""
Choose = Callable[[Any, dict[str, Any]], Action]


Play = Callable[[str], bool]
"""Take an action; whether the episode is over."""
Begin = Callable[[str, int], Play]
"""Begin an episode of a split's task."""


@dataclass
class Pace:
    """Times of one way to drive an environment, in seconds."""

    resets: list[float]
    steps: list[list[float]]
    """Of each episode."""

    @property
    def reset_ms(self) -> float:
        return 1000 * median(self.resets)

    @property
    def step_s(self) -> float:
        return sum(map(sum, self.steps)) / max(sum(map(len, self.steps)), 1)

    @property
    def spent(self) -> float:
        return sum(self.resets) + sum(map(sum, self.steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", help="ids  [default: all]")
    parser.add_argument("--seconds", type=float, default=3.0, help="of stepping, for each environment and way")
    options = parser.parse_args()
    print(
        "| environment | reset, ms | steps/s | over HTTP: reset, ms | steps/s | HTTP / local | memory, MB "
        "| original, steps/s | overhead |\n|---|---|---|---|---|---|---|---|---|"
    )
    slow = [name for name in options.envs or registry.list_envs() if not measure(name, options.seconds)]
    if slow:
        sys.exit(f"more than {100 * MOST_OVERHEAD:.0f} % over the original: {', '.join(slow)}")


def measure(name: str, seconds: float) -> bool:
    """Prints an environment's line; False when its overhead is too great."""
    try:
        env = registry.make(name)
    except MissingDependency as error:
        print(f"| {name} | left out: {error} |", flush=True)
        return True
    try:
        here, actions = local_pace(env, seconds)
    except AgentGymError as error:  # a program that is missing is found out by the first reset
        print(f"| {name} | left out: {error} |", flush=True)
        return True
    finally:
        env.close()
    there, memory = asyncio.run(remote_pace(name, actions, seconds))
    shown, fair = "| |", True
    if original := ORIGINALS.get(type(env).__name__):
        ours, theirs = race(name, original, actions)
        overhead = ours / theirs - 1
        shown = f"| {1 / theirs:,.0f} | {100 * overhead:+.1f} % |"
        fair = theirs < DOMINATES_S or overhead <= MOST_OVERHEAD
    print(
        f"| {name} | {here.reset_ms:,.2f} | {1 / here.step_s:,.0f} | {there.reset_ms:,.2f} | {1 / there.step_s:,.0f} "
        f"| {there.step_s / here.step_s:.1f} | {memory:.1f} {shown}",
        flush=True,
    )
    return fair


def choices(env: Env) -> Choose:
    """What to do next: drawn from what is offered; where nothing is, the solver's."""
    random = np.random.default_rng(0)

    def choose(env: Any, info: dict[str, Any]) -> Action:
        offered = info.get("available_actions") or env.env_spec.actions
        return offered[int(random.integers(len(offered)))] if offered else env.solver()

    return choose


def local_pace(env: Env, seconds: float) -> tuple[Pace, list[list[Action]]]:
    """Plays for `seconds`: its pace, and what was done in each episode (task i of the first split is the i-th)."""
    pace, played, choose = Pace([], []), [], choices(env)
    for options in tasks(env):
        began = time.perf_counter()
        _, info = env.reset(seed=0, options=options)
        pace.resets.append(time.perf_counter() - began)
        played.append([])
        pace.steps.append([])
        over = False
        while not over:
            action = choose(env, info)
            began = time.perf_counter()
            _, _, terminated, truncated, info = env.step(action)
            pace.steps[-1].append(time.perf_counter() - began)
            played[-1].append(action)
            over = terminated or truncated
        if pace.spent > seconds:
            return pace, played
    raise AssertionError("tasks() is endless")


def race(name: str, original: Callable[[Any], Begin], played: list[list[Action]]) -> tuple[float, float]:
    """Seconds of a step, ours and the third party's own. Of each step the least over all rounds counts: what else the
    machine does, and what a virtual machine has compiled so far, falls out. Each round opens both anew."""
    sides: tuple[list[Pace], list[Pace]] = ([], [])
    enough = next((i for i, n in enumerate(np.cumsum(list(map(len, played))), 1) if n >= RACE_STEPS), len(played))
    for number in range(ROUNDS):
        env = registry.make(name)
        ways = [(own(env), Pace([], []), sides[0]), (original(env), Pace([], []), sides[1])]
        for options, actions in zip(tasks(env), played[:enough], strict=False):
            for begin, pace, _ in ways if (number + len(ways[0][1].steps)) % 2 else reversed(ways):
                replay(begin, options, actions, pace)
        for _, pace, paces in ways:
            paces.append(pace)
        env.close()
    ours, theirs = ([list(itertools.chain(*pace.steps)) for pace in paces] for paces in sides)
    assert len({len(steps) for steps in ours + theirs}) == 1, "the same actions, and another episode"
    return float(np.mean(np.min(ours, axis=0))), float(np.mean(np.min(theirs, axis=0)))


def own(env: Env) -> Begin:
    def begin(split: str, task: int) -> Play:
        env.reset(seed=0, options={"split": split, "task": task})

        def play(action: str) -> bool:
            _, _, terminated, truncated, _ = env.step(action)
            return terminated or truncated

        return play

    return begin


def replay(begin: Begin, options: dict[str, Any], actions: list[Action], pace: Pace) -> None:
    began = time.perf_counter()
    play = begin(options["split"], options["task"])
    pace.resets.append(time.perf_counter() - began)
    pace.steps.append([])
    for action in actions:
        began = time.perf_counter()
        over = play(str(action))
        pace.steps[-1].append(time.perf_counter() - began)
        if over:
            return


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
                pace.steps.append([])
                for action in episode:
                    began = time.perf_counter()
                    step: Step = await session.step(action)
                    pace.steps[-1].append(time.perf_counter() - began)
                    if step.terminated or step.truncated:
                        break
                if pace.spent > seconds:
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


# --- the third party's own -----------------------------------------------------------------------------------------


def textworld(env: Any) -> Begin:
    """TextWorld's own loop, asked for what ours shows: commands, score, description, plan."""
    import textworld

    from agentgym_environments.benchmarks.textworld.tasks import game_file

    def begin(split: str, task: int) -> Play:
        path = game_file(env.challenge, env.level, split, task, env.cache)
        inner: Any = textworld.start(str(path), request_infos=env._wanted)
        state = inner.reset()

        def play(action: str) -> bool:
            nonlocal state
            command = next((one for one in state.admissible_commands if one.lower() == action), action)
            state, _, over = inner.step(command)
            return over

        return play

    return begin


def scienceworld(env: Any) -> Begin:
    """ScienceWorld's own Python environment, which lists the possible actions at every step, as ours does."""
    from scienceworld import ScienceWorldEnv

    inner = ScienceWorldEnv("", envStepLimit=10**6)

    def begin(split: str, task: int) -> Play:
        inner.load(env.task, env.variations[split][task], env.simplifications, generateGoldPath=True)
        inner.reset()
        return lambda action: inner.step(action)[2]

    return begin


ORIGINALS: dict[str, Callable[[Any], Begin]] = {"TextWorld": textworld, "ScienceWorld": scienceworld}


if __name__ == "__main__":
    main()
