"""Gymnasium's own interfaces to an environment behind a URL: `RemoteEnv` is one environment, `RemoteVectorEnv` many in
step.

    env = RemoteEnv("http://127.0.0.1:8000")
    observation, info = env.reset(seed=0, options={"task": 3})
    observation, reward, terminated, truncated, info = env.step("apple")
    env.close()

Both are a thin synchronous face of `agentgym.clients.client`, for notebooks and other people's trainers. They raise
what a `Session` raises: a failure of the environment or the network is never an observation.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from agentgym import spaces
from agentgym.clients.client import EnvClient
from agentgym.env import Action, Observation
from agentgym.errors import BadRequest, UsageError
from agentgym.session import Step

Result = TypeVar("Result")


class BackgroundLoop:
    """An event loop in a thread, shared: the first `acquire` starts it, the last `release` ends it."""

    _lock = threading.Lock()
    _shared: BackgroundLoop | None = None

    def __init__(self) -> None:
        self._holders = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agentgym-remote", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> BackgroundLoop:
        with cls._lock:
            if cls._shared is None:
                cls._shared = cls()
            cls._shared._holders += 1
            return cls._shared

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
            type(self)._shared = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the loop and wait for it. An interrupt (Ctrl-C) cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


class _Remote:
    """A client in the background loop, which both environments share."""

    def __init__(self, url: str, client: dict[str, Any]) -> None:
        self._background: BackgroundLoop | None = BackgroundLoop.acquire()
        try:
            self.client: EnvClient = self.run(self._open(url, client))
        except BaseException:
            self._background.release()
            raise

    async def _open(self, url: str, client: dict[str, Any]) -> EnvClient:
        return await EnvClient(url, **client).__aenter__()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._background is None:
            work.close()
            raise UsageError("the environment is closed; make a new one")
        return self._background.run(work)

    def close(self) -> None:
        if self._background is None:
            return
        try:
            self.run(self.client.close())
        finally:
            self._background.release()
            self._background = None


class RemoteEnv(gymnasium.Env[Observation, Action]):
    """The environment at `url` as one Gymnasium environment. Further arguments are `EnvClient`'s. Close it when done.

    For a gateway with API keys pass `key=...`: the AGENTGYM_KEY variable is read by the command line only.
    """

    metadata = {"render_modes": []}

    def __init__(self, url: str, **client: Any) -> None:
        self._remote = _Remote(url, client)
        self.env_spec = self._remote.client.spec
        self._session = self._remote.client.session()
        self.observation_space = _observation_space(self.env_spec)
        self.action_space = _action_space(self.env_spec)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        step = self._remote.run(self._session.reset(seed=seed, options=options))
        return step.observation, step.info

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        return tuple(self._remote.run(self._session.step(action)))  # type: ignore[return-value]

    def query(self, name: str) -> Any:
        """Return the value of a query of the protocol, by its name."""
        return self._remote.run(self._session.query(name))

    def solver(self) -> Action:
        """Return the scripted solver's next action (capability "solver")."""
        return self._remote.run(self._session.solver())

    def hint(self) -> str:
        """Return guidance for the present state, in words."""
        return self._remote.run(self._session.hint())

    def snapshot(self) -> bytes:
        """Return the whole state of the episode, for `restore`."""
        return self._remote.run(self._session.snapshot())

    def restore(self, state: bytes, *, seed: int | None = None) -> None:
        """Continue from a snapshot; with `seed`, chance from there on is drawn from it."""
        self._remote.run(self._session.restore(state, seed=seed))

    def close(self) -> None:
        self._remote.close()


class RemoteVectorEnv(VectorEnv[tuple[Observation, ...], Sequence[Action], np.ndarray]):
    """`num_envs` sessions of the environment at `url`, stepped together; their steps travel in one request.

    Observations are tuples of `num_envs`, rewards float64[num_envs], ends bool[num_envs]. An episode that ended is
    reset by the next `step`, whose action for it is ignored and whose reward is 0 (`AutoresetMode.NEXT_STEP`); a
    `reset(options=...)` is for that reset alone. When one environment fails, `step` raises its failure after the others
    have
    stepped: `reset` begins all anew.
    """

    def __init__(self, url: str, num_envs: int, **client: Any) -> None:
        self.closed = True  # until there is something that `__del__` of VectorEnv may close
        if num_envs < 1:
            raise UsageError(f"a vector has at least one environment, not {num_envs}")
        self._remote = _Remote(url, client)
        self.closed = False
        self.num_envs = num_envs
        self.env_spec = self._remote.client.spec
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = _observation_space(self.env_spec)
        self.single_action_space = _action_space(self.env_spec)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._sessions = [self._remote.client.session() for _ in range(num_envs)]
        self._ended = np.zeros(num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[Observation, ...], dict[str, Any]]:
        """Begin all episodes. A single `seed` gives environment i `seed + i`."""
        super().reset(seed=seed if isinstance(seed, int) else None)
        if seed is None or isinstance(seed, int):
            seeds: Sequence[int | None] = [None if seed is None else seed + i for i in range(self.num_envs)]
        else:
            seeds = seed
        if len(seeds) != self.num_envs:
            raise BadRequest(f"{len(seeds)} seeds were given for {self.num_envs} environments")
        steps = self._all([s.reset(seed=n, options=options) for s, n in zip(self._sessions, seeds)])
        self._ended[:] = False
        return tuple(step.observation for step in steps), self._infos(steps)

    def step(
        self, actions: Sequence[Action]
    ) -> tuple[tuple[Observation, ...], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if len(actions) != self.num_envs:
            raise BadRequest(f"{len(actions)} actions were given for {self.num_envs} environments")
        steps = self._all(
            [s.reset() if ended else s.step(a) for s, a, ended in zip(self._sessions, actions, self._ended)]
        )
        rewards = np.array([step.reward for step in steps], dtype=np.float64)
        terminations = np.array([step.terminated for step in steps], dtype=np.bool_)
        truncations = np.array([step.truncated for step in steps], dtype=np.bool_)
        self._ended = terminations | truncations
        return tuple(step.observation for step in steps), rewards, terminations, truncations, self._infos(steps)

    def close_extras(self, **_: Any) -> None:
        self._remote.close()

    def _all(self, calls: list[Coroutine[Any, Any, Step]]) -> list[Step]:
        async def gather() -> list[Step | BaseException]:
            return await asyncio.gather(*calls, return_exceptions=True)

        results: list[Step] = []
        for result in self._remote.run(gather()):
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results

    def _infos(self, steps: list[Step]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for index, step in enumerate(steps):
            infos = self._add_info(infos, step.info, index)
        return infos


def _observation_space(spec: Any) -> spaces.ObservationSpace:
    return spaces.ObservationSpace(image="image" in spec.observations)


def _action_space(spec: Any) -> spaces.ActionSpace:
    return spaces.ActionSpace(spec.actions, [tool.name for tool in spec.tools])
