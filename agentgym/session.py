"""A session: one episode after another of one world, wherever the world runs. The rollout knows nothing else of it."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, Protocol

from agentgym.env import Action, Env, Observation
from agentgym.errors import DeadlineExceeded, EnvironmentCrashed, EnvironmentFailure
from agentgym.spec import EnvSpec


class Step(NamedTuple):
    """What a world answers; after `reset`, reward is 0 and both ends are False."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Session(Protocol):
    """One open world. Every method raises EnvironmentFailure when the world, not the agent, is at fault."""

    spec: EnvSpec

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Step: ...

    async def step(self, action: Action) -> Step: ...

    async def expert(self) -> Action:
        """The scripted solver's next action (capability "expert")."""
        ...

    async def hint(self) -> str: ...

    async def snapshot(self) -> bytes: ...

    async def restore(self, state: bytes) -> None: ...

    async def close(self) -> None: ...


class LocalSession:
    """A session of an environment in this process. Its steps run in a thread unless the spec says `inline`."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.spec = env.env_spec

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Step:
        observation, info = await self._call(lambda: self.env.reset(seed=seed, options=options))
        return Step(observation, 0.0, False, False, info)

    async def step(self, action: Action) -> Step:
        observation, reward, terminated, truncated, info = await self._call(lambda: self.env.step(action))
        return Step(observation, float(reward), bool(terminated), bool(truncated), info)

    async def expert(self) -> Action:
        return await self._call(self.env.expert)

    async def hint(self) -> str:
        return await self._call(self.env.hint)

    async def snapshot(self) -> bytes:
        return await self._call(self.env.snapshot)

    async def restore(self, state: bytes) -> None:
        await self._call(lambda: self.env.restore(state))

    async def close(self) -> None:
        self.env.close()

    async def _call(self, function: Any) -> Any:
        try:
            if self.spec.inline:
                return function()
            return await asyncio.wait_for(asyncio.to_thread(function), self.spec.step_deadline_s)
        except TimeoutError as error:
            raise DeadlineExceeded(f"{self.spec.id} gave no answer in {self.spec.step_deadline_s:g} s") from error
        except EnvironmentFailure:
            raise
        except Exception as error:  # the world's author may raise anything; the rollout records it
            raise EnvironmentCrashed(f"{self.spec.id} raised {type(error).__name__}: {error}") from error
