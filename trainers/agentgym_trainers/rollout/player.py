"""The present policy, as signals ask it: for replies in given states, and for values of states by playing on from them.

With [scale] the rollout workers answer (`distributed.rollout_workers.RemotePlayer`). Where episodes are played while a
step learns, both are played in the loop of the episodes, beside them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentgym.rollouts.runner import Runner
from agentgym.rollouts.trajectory import Trajectory
from agentgym_trainers.engines.base import Completion, Conversation, Engine, Sampling
from agentgym_trainers.rollout.concurrency import in_home_loop
from agentgym_trainers.rollout.monte_carlo import BranchedValues, branch
from agentgym_trainers.rollout.policy import TokenPolicy
from agentgym_trainers.rollout.tokens import ChatTemplate


@dataclass(frozen=True)
class PolicyPlayer:
    """The policy and its environment, for signals."""

    engine: Engine
    template: ChatTemplate
    sampling: Sampling
    runner: Runner

    async def replies(
        self, states: Sequence[Sequence[int]], seeds: Sequence[int], count: int = 1
    ) -> list[list[Completion]]:
        """`count` replies in each state, given as the ids of its prompt, from the stream of its seed."""
        return await in_home_loop(self._replies(states, seeds, count))

    async def values(
        self,
        trajectories: Sequence[Trajectory],
        salt: tuple[int, ...],
        *,
        continuations: int,
        gamma: float = 1.0,
        seed: int = 0,
    ) -> BranchedValues:
        """V of every state of recorded episodes; see `branch`. `salt` decides the policy's random streams."""
        policy = TokenPolicy(self.engine, self.template, self.sampling, salt)
        return await in_home_loop(
            branch(
                self.runner, policy, trajectories, continuations=continuations, gamma=gamma, seed=seed,
                action_values=False,
            )
        )  # fmt: skip

    async def _replies(
        self, states: Sequence[Sequence[int]], seeds: Sequence[int], count: int
    ) -> list[list[Completion]]:
        return await sample_replies(self.engine, self.sampling, states, seeds, count, self.runner.concurrency)


async def sample_replies(
    engine: Engine, sampling: Sampling, states: Sequence[Sequence[int]], seeds: Sequence[int], count: int, wave: int
) -> list[list[Completion]]:
    """`count` replies in each state, `wave` states at once."""
    answers: list[list[Completion]] = []
    for first in range(0, len(states), wave):
        pairs = zip(states[first : first + wave], seeds[first : first + wave], strict=True)
        opened = [(state, engine.open(np.random.default_rng(seed))) for state, seed in pairs]
        answers += await asyncio.gather(*(_ask(talk, state, sampling, count) for state, talk in opened))
    return answers


async def _ask(conversation: Conversation, state: Sequence[int], sampling: Sampling, count: int) -> list[Completion]:
    try:
        return [await conversation.generate(state, sampling) for _ in range(count)]
    finally:
        conversation.close()
