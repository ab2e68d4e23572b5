"""A match: two actors play one episode of a two-player session, each as if it were its own.

    session (role 0, role 1, 0, ...)  <->  a table  <->  two seats, one a role  <->  two rollouts

A seat is a session of one player: a step answers when its role is asked again, or when the game is over, with all that
the role won meanwhile. So each role has a trajectory of its own: its observations, its turns, its return. Prompt
format, limits and failures are the rollout's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from agentgym.env import Action
from agentgym.errors import EnvironmentCrashed, EpisodeLost, UsageError
from agentgym.rollouts.policy import Actor, EpisodeSpec
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, rollout
from agentgym.rollouts.trajectory import Trajectory
from agentgym.session import Session, Step
from agentgym.spec import EnvSpec


async def match(
    session: Session,
    actors: Sequence[Actor],
    prompt_format: PromptFormat,
    episodes: Sequence[EpisodeSpec],
    limits: Limits,
) -> tuple[Trajectory, Trajectory]:
    """The trajectories of roles 0 and 1, played by `actors` in that order. `episodes` are of one split, task and seed;
    their attempts tell the roles' records apart.

    Where a role cannot go on (its context is full, its turns are used up), the game is cut for the other too; where
    infrastructure failed one, both have failed. A role that was never asked has no turns. Raises UsageError where the
    environment is none of two players.
    """
    if "two_player" not in session.spec.capabilities:
        raise UsageError(
            f"{session.spec.id} has one player: a match needs an environment with the capability two_player"
        )
    table = _TwoPlayerGame(session)

    async def play(role: int) -> Trajectory:
        trajectory = None
        try:
            trajectory = await rollout(PlayerSession(table, role), actors[role], prompt_format, episodes[role], limits)
            return trajectory
        finally:
            table.leave(failed=trajectory is None or trajectory.stop.is_failure)

    players = [asyncio.ensure_future(play(role)) for role in (0, 1)]
    try:
        first, second = await asyncio.gather(*players)
        return first, second
    finally:
        for player in players:
            player.cancel()
        await asyncio.gather(*players, return_exceptions=True)


class _TwoPlayerGame:
    """The game between two seats."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.step: Step | None = None
        """The session's last answer."""
        self.pending_reward = [0.0, 0.0]
        """Reward of each role since its last step."""
        self.valid: list[Any] = [True, True]
        """valid_action of each role's last action."""
        self.events = (asyncio.Event(), asyncio.Event())
        """Set while a role is to move, and of both once nothing will change any more."""
        self.left = self.failed = False

    async def begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        self._took(await self.session.reset(seed=seed, options=options))

    async def act(self, role: int, action: Action) -> None:
        self.events[role].clear()
        step = await self.session.step(action)
        rewards = step.info.get("rewards")
        if not (isinstance(rewards, list) and len(rewards) == 2):
            raise EnvironmentCrashed(f"{self.session.spec.id} has two players, and info['rewards'] is {rewards!r}")
        self.pending_reward = [pending + won for pending, won in zip(self.pending_reward, rewards)]
        self.valid[role] = step.info.get("valid_action", True)
        self._took(step)

    async def answer(self, role: int) -> Step:
        """Return the step of `role`, once it is its turn or the game is over."""
        await self.events[role].wait()
        if self.failed:
            raise EpisodeLost("the other player's side of the match failed")
        step, (reward, self.pending_reward[role]) = self.step, (self.pending_reward[role], 0.0)
        if step is None or (self.left and not self.over):  # what is on the table is for the other's eyes
            info = {"role": role, "success": False, "other_left": True}
            return Step("the other player has left", reward, False, True, info)
        info = {**step.info, "role": role, "valid_action": self.valid[role]}
        if "successes" in step.info:
            info["success"] = step.info["successes"][role]
        return Step(step.observation, reward, step.terminated, step.truncated, info)

    def leave(self, failed: bool) -> None:
        """A role plays no more."""
        self.left, self.failed = True, self.failed or failed
        for event in self.events:
            event.set()

    @property
    def over(self) -> bool:
        return self.step is not None and (self.step.terminated or self.step.truncated)

    def _took(self, step: Step) -> None:
        role = step.info.get("role")
        if role not in (0, 1):
            raise EnvironmentCrashed(f"{self.session.spec.id} has two players, and info['role'] is {role!r}")
        self.step = step
        for event in self.events if self.over else (self.events[role],):
            event.set()


class PlayerSession(Session):
    """One role's session. The reset is role 0's; role 1 waits for it."""

    def __init__(self, table: _TwoPlayerGame, role: int) -> None:
        self.table, self.role = table, role
        self.spec: EnvSpec = table.session.spec

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Step:
        if self.role == 0:
            await self.table.begin(seed, options)
        step = await self.table.answer(self.role)
        self.table.pending_reward[self.role] = step.reward  # part of the role's first step: a reset has no reward
        return step._replace(reward=0.0)

    async def step(self, action: Action) -> Step:
        await self.table.act(self.role, action)
        return await self.table.answer(self.role)

    async def query(self, name: str) -> Any:
        if name == "snapshot":
            raise UsageError("a match cannot be continued from one role's seat: snapshot its session")
        return await self.table.session.query(name)

    async def restore(self, state: bytes, *, seed: int | None = None) -> None:
        raise UsageError("a match cannot be continued from one role's seat: restore its session")

    async def close(self) -> None:
        """The session is whoever opened it's."""
