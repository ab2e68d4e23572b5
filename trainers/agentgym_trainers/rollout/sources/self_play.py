"""Self-play: the policy sits at both sides of a two-player environment, or across from a past self.

    task (deal, opening) --> role 0's group: attempts 0 .. k-1      opponent "self": a game is an attempt of each group
                         --> role 1's group: attempts k .. 2k-1     else: games of their own for each

Every role of every game is an episode of its own (`agentgym.rollouts.two_player`): what the role saw, its turns with
their `role`, its return. So any part of a recipe can be used; SPIRAL's is `credit.assigner = "rae"` with
[signals.role].
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from agentgym.errors import EnvironmentFailure
from agentgym.rollouts.policy import Actor, EpisodeSpec, Policy, RandomPolicy, SolverPolicy
from agentgym.rollouts.runner import Runner
from agentgym.rollouts.trajectory import Group, ImageSpan, StopReason, Trajectory
from agentgym.rollouts.two_player import match
from agentgym.session import Session
from agentgym_trainers.config.registry import KindOptions
from agentgym_trainers.engines.base import Completion, Conversation, Sampling
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.rollout.policy import TokenActor, TokenPolicy
from agentgym_trainers.rollout.sources.base import Collector, Source


class SelfPlayOptions(KindOptions):
    """The policy plays both roles of a two-player environment, or one of them against a past self, the solver or
    chance."""

    kind: Literal["selfplay"] = "selfplay"
    opponent: Literal["self", "past", "random", "solver"] = "self"
    """Policy of the other role. Of "self" both sides are learned from."""
    refresh_every: int = Field(default=10, gt=0)
    """Steps after which the past self is the present one again."""


class SelfPlaySource(Source):
    def __init__(self, options: SelfPlayOptions) -> None:
        self.options = options
        self.round = -1
        """The past self that plays; −1 before there is one."""
        self._past: dict[str, Any] = {}
        """Its weights."""

    async def collect(self, trainer: Collector, groups: int) -> list[Group]:
        """A group for each of the two roles of `groups` / 2 tasks."""
        size, policy = trainer.config.rollout.group_size, trainer.policy(trainer.config.run.seed, trainer.step)
        env, split = trainer.spec.id, trainer.config.env.split
        tasks = trainer.curriculum.propose(groups // 2)
        pairs = [
            tuple(EpisodeSpec(env, split, task, seed, attempt + role * size) for role in (0, 1))
            for task, seed in tasks
            for attempt in range(size)
        ]
        if self.options.opponent == "self":
            played = await play(trainer.runner, [SelfPlayGame(pair, both(policy, pair[0])) for pair in pairs])
            sides = [[pair[role] for pair in played] for role in (0, 1)]
        else:
            opponent = self._opponent(trainer)
            try:
                games = [SelfPlayGame(pair, across(policy, opponent, pair, role)) for role in (0, 1) for pair in pairs]
                played = await play(trainer.runner, games)
            finally:
                if isinstance(opponent, TokenPolicy) and isinstance(opponent.engine, InProcessEngine):
                    opponent.engine.shutdown()
            sides = [[pair[role] for pair in played[role * len(pairs) : (role + 1) * len(pairs)]] for role in (0, 1)]
        return [Group(tuple(side[i : i + size])) for i in range(0, len(pairs), size) for side in sides]

    def _opponent(self, trainer: Collector) -> Policy:
        seed = trainer.config.run.seed
        if self.options.opponent == "random":
            return RandomPolicy(seed)
        if self.options.opponent == "solver":
            return SolverPolicy(seed=seed)
        model = trainer.learner.model
        due = trainer.step // self.options.refresh_every
        if due != self.round:
            self.round = due
            self._past = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
        past = copy.deepcopy(model).requires_grad_(False)
        past.load_state_dict(self._past)
        rollout, policy = trainer.config.rollout, trainer.policy(seed, trainer.step, 1)
        engine = InProcessEngine(past, max_sequences=rollout.concurrency, max_length=rollout.max_length)
        return TokenPolicy(engine, policy.template, policy.sampling, policy.salt)

    def state_dict(self) -> dict[str, Any]:
        return {"round": self.round, "past": self._past}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.round, self._past = state["round"], state["past"]


@dataclass(frozen=True)
class SelfPlayGame:
    """The episode that each role plays, and its policy."""

    episodes: tuple[EpisodeSpec, ...]
    actors: Callable[[], tuple[Actor, Actor]]
    """New actors, for each time that the game is begun."""


async def play(runner: Runner, games: Sequence[SelfPlayGame]) -> list[tuple[Trajectory, Trajectory]]:
    """Every game's two trajectories, in order; at most `runner.concurrency` games at once. A game that infrastructure
    failed is played again as the runner says."""
    seats = asyncio.Semaphore(runner.concurrency)
    idle: list[Session] = []

    async def once(game: SelfPlayGame) -> tuple[Trajectory, Trajectory]:
        try:
            session = idle.pop() if idle else await runner.open_session()
        except EnvironmentFailure as failure:
            result = {"turns": (), "stop": StopReason.ENVIRONMENT_FAILED, "error": f"{failure.code}: {failure}"}
            first, second = (Trajectory(**episode._asdict(), **result) for episode in game.episodes)
            return first, second
        played = await match(session, game.actors(), runner.prompt_format, game.episodes, runner.limits)
        if any(trajectory.stop.is_failure for trajectory in played):
            await _close(session)
        else:
            idle.append(session)
        return played

    async def tried(game: SelfPlayGame) -> tuple[Trajectory, Trajectory]:
        async with seats:
            for _ in range(runner.retries):
                played = await once(game)
                if not any(trajectory.stop.is_failure for trajectory in played):
                    return played
            return await once(game)

    playing = [asyncio.ensure_future(tried(game)) for game in games]
    try:
        return list(await asyncio.gather(*playing))
    finally:
        for game in playing:
            game.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
        for session in idle:
            await _close(session)


def both(policy: TokenPolicy, episode: EpisodeSpec) -> Callable[[], tuple[Actor, Actor]]:
    """The policy on both sides of a game, which is one sequence to the engine: only one side is ever to move."""

    def actors() -> tuple[Actor, Actor]:
        shared = _Shared(policy.engine.open(episode.rng(*policy.salt)))
        first, second = (
            TokenActor(shared, policy.template, policy.sampling, policy.engine.max_length) for _ in range(2)
        )
        return first, second

    return actors


def across(
    policy: Policy, opponent: Policy, episodes: Sequence[EpisodeSpec], role: int
) -> Callable[[], tuple[Actor, Actor]]:
    """The policy as `role`, an opponent as the other."""
    players = (policy, opponent) if role == 0 else (opponent, policy)

    def actors() -> tuple[Actor, Actor]:
        return players[0].actor(episodes[0]), players[1].actor(episodes[1])

    return actors


@dataclass
class _Shared:
    """A conversation of two actors. They never wait for the engine at the same time, so that it counts as one for a
    lockstep engine, and their keys and values lie in one slot."""

    conversation: Conversation
    users: int = field(default=2)

    async def generate(self, prompt: Sequence[int], sampling: Sampling, images: Sequence[ImageSpan] = ()) -> Completion:
        return await self.conversation.generate(prompt, sampling, images=images)

    def close(self) -> None:
        self.users -= 1
        if not self.users:
            self.conversation.close()


async def _close(session: Session) -> None:
    with suppress(EnvironmentFailure):  # the lease will end it
        await session.close()
