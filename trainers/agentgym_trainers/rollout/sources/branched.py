"""Branched episodes: the attempts of a group share their beginning, token by token, and part at one turn.

    trunk      t0 t1 t2 t3      played to its end, thrown away; h = 1 is drawn evenly from its turns
    attempt 0  t0 a1 a2         from the state before turn h, each with its own random stream
    attempt 1  t0 b1 b2 b3

Both attempts are fresh: had one of them been the trunk, h would depend on how it went on. The turn is drawn while the
trunk is played (turn t takes the place of the one before with probability 1 / (t + 1)), so that few states are kept.

A snapshot holds the environment's chance too: where both attempts do the same, the same befalls them, and their
difference is the actions' alone. An environment without snapshots is played to turn h again with the same seed and the
same actions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from agentgym.env import Action
from agentgym.errors import EnvironmentCrashed
from agentgym.rollouts.policy import EpisodeSpec, ModelResponse, Tokens, TurnContext
from agentgym.rollouts.prompt_format import Message, text_of
from agentgym.rollouts.trajectory import Group, Trajectory
from agentgym.session import Session, Step
from agentgym_trainers.config.registry import KindOptions
from agentgym_trainers.engines.base import Completion
from agentgym_trainers.rollout.policy import TokenActor, TokenPolicy
from agentgym_trainers.rollout.sources.base import Collector, Source


class BranchedOptions(KindOptions):
    """A group's attempts share their beginning up to a random turn, and go on from there each by itself."""

    kind: Literal["branched"] = "branched"
    snapshots: bool = True
    """Restore the state before that turn, where the environment can; False plays the beginning again."""


class BranchedSource(Source):
    def __init__(self, options: BranchedOptions) -> None:
        self.options = options

    async def collect(self, trainer: Collector, groups: int) -> list[Group]:
        """Turn h of each attempt has info["branched"]. A group whose trunk failed holds that failure alone."""
        size, runner = trainer.config.rollout.group_size, trainer.runner
        policy = trainer.policy(trainer.config.run.seed, trainer.step)
        proposed = trainer.curriculum.propose(groups)
        env, split = trainer.spec.id, trainer.config.env.split

        trunk = _Trunk(policy, self.options.snapshots and "snapshot" in trainer.spec.capabilities)
        episodes = [EpisodeSpec(env, split, task, seed, size) for task, seed in proposed]
        trunks = await replace(runner, open_session=_opening(runner.open_session, _Recorder)).run(trunk, episodes)
        failed = {(t.task, t.seed): t for t in trunks if t.stop.is_failure or not t.turns}
        prefixes = {(t.task, t.seed): TrunkPrefix.of(t, trunk.marks[t.task, t.seed])
                    for t in trunks if (t.task, t.seed) not in failed}  # fmt: skip

        def resume(session: Session) -> _Resumed:
            return _Resumed(session, prefixes)

        playing = [(task, seed) for task, seed in proposed if (task, seed) in prefixes]
        episodes = [EpisodeSpec(env, split, task, seed, attempt) for task, seed in playing for attempt in range(size)]
        again = replace(runner, open_session=_opening(runner.open_session, resume))
        attempts = await again.run(_Continued(policy, prefixes), episodes)
        parted = [_marked(t, prefixes[t.task, t.seed].at) for t in attempts]
        branches = [Group(tuple(parted[i : i + size])) for i in range(0, len(parted), size)]
        return branches + [Group((t,)) for t in failed.values()]


@dataclass(frozen=True)
class BranchMark:
    """Branch point of a trunk: before turn `at`."""

    at: int
    steps: tuple[Step, ...]
    """Answers of the environment, the one to `reset` first."""
    actions: tuple[Action, ...]
    """Actions that it was sent; a response without an action is none."""
    state: bytes | None
    """Its snapshot, if it was taken."""


@dataclass(frozen=True)
class TrunkPrefix:
    """A mark, and what the policy said before it."""

    mark: BranchMark
    responses: tuple[Completion, ...]

    @property
    def at(self) -> int:
        return self.mark.at

    @classmethod
    def of(cls, trunk: Trajectory, mark: BranchMark) -> TrunkPrefix:
        completions = []
        for turn in trunk.turns[: mark.at]:
            assert turn.span is not None
            branch, span = trunk.branches[turn.span.branch], slice(turn.span.start, turn.span.stop)
            ids, logprobs = branch.ids[span].tolist(), branch.logprobs[span].tolist()
            completions.append(Completion(ids, logprobs, turn.finish, branch.versions[span].tolist()))
        return cls(mark, tuple(completions))


def _marked(trajectory: Trajectory, at: int) -> Trajectory:
    turns = [replace(t, info={**t.info, "branched": True}) if t.index == at else t for t in trajectory.turns]
    return replace(trajectory, turns=tuple(turns))


@dataclass(frozen=True)
class _Trunk:
    """The policy, marking one turn of each episode."""

    policy: TokenPolicy
    snapshots: bool
    marks: dict[tuple[int, int], BranchMark] = field(default_factory=dict)

    def actor(self, episode: EpisodeSpec) -> _Marking:
        return _Marking(self, self.policy.actor(episode), episode, episode.rng(*self.policy.salt, 1))


@dataclass(frozen=True)
class _Marking:
    trunk: _Trunk
    actor: TokenActor
    episode: EpisodeSpec
    rng: np.random.Generator

    async def act(self, ask: TurnContext) -> ModelResponse:
        session = ask.session
        assert isinstance(session, _Recorder)
        if self.rng.random() * (ask.turn + 1) < 1:  # always at turn 0, so that an episode played again begins anew
            state = await session.snapshot() if self.trunk.snapshots else None
            mark = BranchMark(ask.turn, tuple(session.steps), tuple(session.actions), state)
            self.trunk.marks[self.episode.task, self.episode.seed] = mark
        return await self.actor.act(ask)

    def finish(self, messages: list[Message] | None) -> Tokens:
        return self.actor.finish(messages)


@dataclass(frozen=True)
class _Continued:
    """The policy, repeating each episode's prefix."""

    policy: TokenPolicy
    prefixes: dict[tuple[int, int], TrunkPrefix]

    def actor(self, episode: EpisodeSpec) -> _Continuing:
        return _Continuing(self.policy.actor(episode), self.prefixes[episode.task, episode.seed].responses)


@dataclass(frozen=True)
class _Continuing:
    actor: TokenActor
    responses: tuple[Completion, ...]

    async def act(self, ask: TurnContext) -> ModelResponse:
        if ask.turn < len(self.responses):
            return self.actor.repeat(ask, self.responses[ask.turn])
        return await self.actor.act(ask)

    def finish(self, messages: list[Message] | None) -> Tokens:
        return self.actor.finish(messages)


class _Wrapped(Session):
    """A session that passes on what it does not change."""

    def __init__(self, session: Session) -> None:
        self.session, self.spec = session, session.spec

    async def query(self, name: str) -> Any:
        return await self.session.query(name)

    async def restore(self, state: bytes, *, seed: int | None = None) -> None:
        await self.session.restore(state, seed=seed)

    async def close(self) -> None:
        await self.session.close()


class _Recorder(_Wrapped):
    """Remembers the episode as the environment told it."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.steps: list[Step] = []
        self.actions: list[Action] = []

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Step:
        self.steps, self.actions = [await self.session.reset(seed=seed, options=options)], []
        return self.steps[0]

    async def step(self, action: Action) -> Step:
        answer = await self.session.step(action)
        self.steps.append(answer)
        self.actions.append(action)
        return answer


class _Resumed(_Wrapped):
    """Tells an episode's beginning from memory; the environment is put there when it is first asked for more."""

    def __init__(self, session: Session, prefixes: dict[tuple[int, int], TrunkPrefix]) -> None:
        super().__init__(session)
        self.prefixes = prefixes
        self.position = 0

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Step:
        assert seed is not None
        assert options is not None
        self.mark, self.seed, self.options = self.prefixes[options["task"], seed].mark, seed, options
        self.position, self.there = 0, False
        return self.mark.steps[0]

    async def step(self, action: Action) -> Step:
        if self.position < len(self.mark.actions):
            self.position += 1
            return self.mark.steps[self.position]
        if not self.there:
            await self._enter()
            self.there = True
        return await self.session.step(action)

    async def _enter(self) -> None:
        """Bring the environment to the mark. Raises EnvironmentCrashed where it does not go the same way again."""
        if self.mark.state is not None:
            await self.session.restore(self.mark.state)
            return
        step = await self.session.reset(seed=self.seed, options=self.options)
        for action, mark_step in zip([*self.mark.actions, None], self.mark.steps, strict=True):
            if text_of(step.observation) != text_of(mark_step.observation) or step.reward != mark_step.reward:
                raise EnvironmentCrashed(
                    f"{self.spec.id} cannot be branched: it has no snapshots, and the same actions after the same "
                    "seed "
                    f"gave {text_of(step.observation)!r} instead of {text_of(mark_step.observation)!r}"
                )
            if action is not None:
                step = await self.session.step(action)


def _opening(
    open_session: Callable[[], Awaitable[Session]], wrap: Callable[[Session], Session]
) -> Callable[[], Awaitable[Session]]:
    async def opened() -> Session:
        return wrap(await open_session())

    return opened
