"""Episodes played through the real client while things go wrong, held against a run in which nothing does."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chaos.envs import WORDS, Ledger

from agentgym.clients.client import EnvClient
from agentgym.errors import EnvironmentFailure
from agentgym.session import Session, Step

Trouble = Callable[[random.Random], str | None]
"""What an environment is told to do in an episode, drawn by the episode's own generator; None is nothing."""

LINE = 58
"""Bytes that a step takes in the ledger, about."""


@dataclass
class Tally:
    """What became of the episodes."""

    episodes: int = 0
    completed: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """Typed failures by code."""
    messages: dict[str, str] = field(default_factory=dict)
    """What one failure of each code said."""
    twice: list[str] = field(default_factory=list)
    """Steps that were applied more than once."""
    wrong: list[str] = field(default_factory=list)
    """Episodes that are not those of the run without faults."""

    def __iadd__(self, other: Tally) -> Tally:
        self.episodes += other.episodes
        self.completed += other.completed
        self.failed += other.failed
        self.messages |= other.messages
        self.twice += other.twice
        self.wrong += other.wrong
        return self

    def check(self) -> None:
        """No step was applied twice, and every episode is either right or ended in a typed failure."""
        assert not self.twice, self.twice[:5]
        assert not self.wrong, self.wrong[:5]
        assert self.episodes == self.completed + self.failed.total()


@dataclass(frozen=True)
class Played:
    """One episode as the client saw it."""

    seed: int
    key: str
    steps: list[Step]
    error: EnvironmentFailure | None


async def play_by_both_wires(urls: Sequence[str], seeds: range, ledger: Path, **how: Any) -> Tally:
    """`play` each environment by HTTP and by the socket at the same time; `seeds` are shared out among them."""
    ways = [(url, wire) for url in urls for wire in ("http", "socket")]
    parts = [seeds[number :: len(ways)] for number in range(len(ways))]
    total = Tally()
    for tally in await asyncio.gather(
        *(play(url, part, ledger, wire, **how) for (url, wire), part in zip(ways, parts))
    ):
        total += tally
    return total


async def play(
    url: str,
    seeds: range,
    ledger: Path,
    wire: Literal["http", "socket"],
    *,
    at_once: int = 8,
    clients: int = 2,
    trouble: Trouble = lambda _: None,
    pace_s: float = 0.0,
    collector: str | None = None,
    **client: Any,
) -> Tally:
    """Play an episode for each seed, `at_once` at a time, each player going on in its session while that lives.

    `collector`: "HOST:PORT" that environments which cannot write to `ledger` tell of their steps.
    """
    played: list[Played] = []
    run, waiting = uuid.uuid4().hex[:8], iter(seeds)
    options = {"ledger": collector or str(ledger), "pace_s": pace_s}
    async with AsyncExitStack() as stack:
        connected = [await stack.enter_async_context(EnvClient(url, wire=wire, **client)) for _ in range(clients)]
        async with asyncio.TaskGroup() as group:
            for number in range(at_once):
                group.create_task(_player(connected[number % clients], waiting, run, options, trouble, played))
    return audit(played, ledger)


@asynccontextmanager
async def now_and_then(ledger: Path, every: float, deed: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Do something at random moments, `every` so many steps on average: a slow machine is not disturbed more often."""
    chance, over = random.Random(1), False

    async def repeat() -> None:
        while True:
            target = _size(ledger) + chance.uniform(0.5, 1.5) * every * LINE
            while _size(ledger) < target:
                if over:
                    return
                await asyncio.sleep(0.01)
            await deed()

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        over = True
        await task


def _size(ledger: Path) -> int:
    return ledger.stat().st_size if ledger.exists() else 0


async def _player(
    client: EnvClient, seeds: Iterator[int], run: str, options: dict[str, Any], trouble: Trouble, played: list[Played]
) -> None:
    session = client.session()
    for seed in seeds:
        steps: list[Step] = []
        key, error = f"{run}-{seed}", None
        try:
            await _episode(session, seed, {**options, "key": key}, trouble, steps)
        except EnvironmentFailure as failure:
            error = failure
            await session.close()
            session = client.session()
        played.append(Played(seed, key, steps, error))
    await session.close()


async def _episode(session: Session, seed: int, options: dict[str, Any], trouble: Trouble, steps: list[Step]) -> None:
    chance = random.Random(seed)
    deed, at = trouble(chance), chance.randrange(4)
    if deed is not None:
        options = {**options, "trouble": deed, "trouble_at": at}
    steps.append(await session.reset(seed=seed, options={"task": seed % 64, **options}))
    while not (steps[-1].terminated or steps[-1].truncated):
        steps.append(await session.step(choice(seed, len(steps) - 1, steps[-1].observation)))


def choice(seed: int, index: int, observation: Any) -> str:
    """The policy: it looks at the observation, so that a wrong one shows in what is played."""
    return f"{index} {random.Random(f'{seed} {index} {observation}').choice(WORDS)}"


def faultless(seed: int) -> tuple[list[Step], list[str]]:
    """The episode of this seed where nothing goes wrong, and its actions."""
    env, actions = Ledger(), []
    observation, info = env.reset(seed=seed, options={"task": seed % 64})
    steps = [Step(observation, 0.0, False, False, info)]
    while not (steps[-1].terminated or steps[-1].truncated):
        actions.append(choice(seed, len(actions), steps[-1].observation))
        steps.append(Step(*env.step(actions[-1])))
    return steps, actions


def audit(played: list[Played], ledger: Path) -> Tally:
    """Hold what the client saw and what the environments wrote down against the runs without faults."""
    applied: dict[str, list[tuple[str, str]]] = {}
    for line in ledger.read_text().splitlines() if ledger.exists() else []:
        key, instance, action = line.split(" ", 2)
        applied.setdefault(key, []).append((instance, action))
    tally = Tally(episodes=len(played))
    for episode in played:
        steps, actions = faultless(episode.seed)
        lines = applied.get(episode.key, [])
        done = [action for _, action in lines]
        tally.twice += [f"{episode.key}: {action!r} {n} times" for action, n in Counter(done).items() if n > 1]
        if len({instance for instance, _ in lines}) > 1:
            tally.wrong.append(f"{episode.key}: its steps went to several environments: {lines}")
        if episode.steps != steps[: len(episode.steps)] or done != actions[: len(done)]:
            tally.wrong.append(f"{episode.key}: {episode.steps} after {done}, not {steps} after {actions}")
        elif episode.error is not None:
            tally.failed[episode.error.code] += 1
            tally.messages[episode.error.code] = str(episode.error)
        elif episode.steps != steps or done != actions:
            tally.wrong.append(f"{episode.key}: ended early without an error: {episode.steps}")
        else:
            tally.completed += 1
    return tally
