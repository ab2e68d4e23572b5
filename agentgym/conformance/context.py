"""Sessions, episodes and errors that the conformance rules use."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentgym.env import Action
from agentgym.errors import BadRequest, EnvironmentCrashed, OutOfOrder
from agentgym.session import Session, Step
from agentgym.spaces import ObservationSpace as ObservationSpace
from agentgym.spec import EnvSpec

NONSENSE = "xyzzy 123 {]"
"""No environment should take this for an action."""


class CheckFailed(Exception):
    """The environment breaks the rule; says what was seen and guesses the cause."""


class Skip(Exception):
    """The rule does not apply to this environment."""


@dataclass
class CheckContext:
    """Fresh sessions of one environment, for the rules."""

    open_session: Callable[[], Awaitable[Session]]
    spec: EnvSpec
    tasks: int
    seed: int
    splits: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.splits = list(self.spec.splits)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        session = await self.open_session()
        try:
            yield session
        finally:
            await session.close()

    def task_list(self, split: str) -> list[int]:
        """Return at most `tasks` tasks, spread over the split."""
        size = self.spec.splits[split]
        return sorted({round(i * (size - 1) / max(1, self.tasks - 1)) for i in range(min(self.tasks, size))})

    async def begin(self, session: Session, task: int = 0, seed: int = 0, split: str | None = None) -> Step:
        options = {"split": split or self.splits[0], "task": task}
        return await session.reset(seed=self.seed + seed, options=options)

    async def choose(self, session: Session, step: Step, random: np.random.Generator) -> Action:
        """An action for the present state: now and then nonsense, else the solver's or a legal one."""
        if random.random() < 0.1:
            return NONSENSE
        offered = step.info.get("available_actions") or list(self.spec.actions)
        if "solver" in self.spec.capabilities and (not offered or random.random() < 0.5):
            return await session.solver()
        if offered:
            return str(offered[random.integers(len(offered))])
        if self.spec.tools:
            return {"name": self.spec.tools[random.integers(len(self.spec.tools))].name, "arguments": {}}
        return f"{NONSENSE} {random.integers(10)}"

    async def play(
        self, session: Session, step: Step, random_seed: int = 0, turns: int | None = None, nonsense: bool = False
    ) -> Episode:
        """Play on from `step` with chosen actions (or nonsense alone), to the end or for `turns` turns."""
        random = np.random.default_rng([self.seed, random_seed])
        episode = Episode([], [step])
        while not episode.over and len(episode.actions) < (turns or self.spec.max_turns + 1):
            action = NONSENSE if nonsense else await self.choose(session, episode.steps[-1], random)
            episode.actions.append(action)
            episode.steps.append(await session.step(action))
        return episode


@dataclass
class Episode:
    actions: list[Action]
    steps: list[Step]
    """One more than actions: the first is what `reset` answered."""

    @property
    def over(self) -> bool:
        return self.steps[-1].terminated or self.steps[-1].truncated


async def replay(session: Session, actions: list[Action]) -> list[Step]:
    """Replay the actions up to the end of the episode."""
    steps: list[Step] = []
    for action in actions:
        steps.append(await session.step(action))
        if steps[-1].terminated or steps[-1].truncated:
            break
    return steps


def fingerprint(step: Step) -> str:
    """Everything a step says, as text that can be compared."""
    observation, reward, terminated, truncated, info = step
    if isinstance(observation, dict):
        observation = {**observation, "image": np.asarray(observation["image"]).tobytes().hex()}
    return json.dumps([observation, reward, terminated, truncated, info], sort_keys=True, default=repr)


def require_same(expected: list[Step], found: list[Step], what: str, cause: str) -> None:
    for turn, (one, other) in enumerate(zip(expected, found)):
        if fingerprint(one) != fingerprint(other):
            raise CheckFailed(f"{what}: after {turn} steps {short(one)} became {short(other)}. {cause}")


async def episodes(probe: CheckContext, count: int = 6) -> AsyncIterator[tuple[int, Episode]]:
    """A few tasks of the first split, played through."""
    async with probe.session() as session:
        for task in probe.task_list(probe.splits[0])[:count]:
            yield task, await probe.play(session, await probe.begin(session, task, seed=task), task)


async def openings(probe: CheckContext, split: str, tasks: list[int], seeds: Sequence[int] = ()) -> list[str]:
    """Return what distinguishes tasks at their start: the observation and, where there is one, the state's key."""
    seeds = seeds or [0] * len(tasks)
    async with probe.session() as session:
        steps = [await probe.begin(session, task, seed, split) for task, seed in zip(tasks, seeds)]
    return [fingerprint(step._replace(info={"state_key": step.info.get("state_key")})) for step in steps]


def tells_state(probe: CheckContext) -> bool:
    return "state_key" in probe.spec.info_keys


async def require_refusal(call: Awaitable[Any], what: str) -> None:
    try:
        answer = await call
    except (BadRequest, OutOfOrder):
        return
    except EnvironmentCrashed as error:
        raise CheckFailed(
            f"{what} crashed: {error}. Raise agentgym.errors.BadRequest with a sentence instead"
        ) from None
    raise CheckFailed(f"{what} was answered with {short(answer)}. Raise agentgym.errors.BadRequest with a sentence")


def require_observation(session: Session, where: str, observation: Any) -> None:
    image = "image" in session.spec.observations
    if not ObservationSpace(image=image).contains(observation):
        kind = '{"text": str, "image": uint8[H, W, 3]}' if image else "text"
        raise CheckFailed(f"the observation of {where} is {short(observation)}; this spec's observations are {kind}")


def require_deterministic(probe: CheckContext) -> None:
    if not probe.spec.deterministic:
        raise Skip(f"the spec says the environment is not deterministic: {probe.spec.notes}")


def require_capability(probe: CheckContext, name: str) -> None:
    if name not in probe.spec.capabilities:
        raise Skip(f"the environment does not claim {name!r}")


def short(value: Any) -> str:
    text = fingerprint(value) if isinstance(value, Step) else repr(value)
    return text if len(text) <= 160 else f"{text[:150]}... ({type(value).__name__})"
