"""A session: one episode after another of one environment, wherever the environment runs. The rollout knows nothing
else of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from agentgym.env import Action, Env, reward_problem
from agentgym.env import Step as Step
from agentgym.errors import DeadlineExceeded, EnvironmentCrashed, EnvironmentFailure, EpisodeLost
from agentgym.spec import EnvSpec


class Session(Protocol):
    """One open environment. Every method raises EnvironmentFailure when the environment, not the agent, is at fault."""

    spec: EnvSpec

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Step:
        """Begin an episode and return its first observation, with reward 0.

        `options` may hold `split` and `task`; without a task, one is drawn from `seed`. Further keys are the
        environment's.
        """
        ...

    async def step(self, action: Action) -> Step:
        """Take one action: text, or a tool call `{"name": ..., "arguments": {...}}`. Return what the environment
        answers.

        Raises BadRequest before the first reset and after the episode's end.
        """
        ...

    async def query(self, name: str) -> Any:
        """Return the value of a query of `agentgym.protocol.VERBS`: what the environment's method `name` returns."""
        ...

    async def solver(self) -> Action:
        """Return the scripted solver's next action (capability "solver")."""
        return await self.query("solver")

    async def hint(self) -> str:
        """Return guidance for the present state, in words (capability "hint")."""
        return await self.query("hint")

    async def snapshot(self) -> bytes:
        """Return the whole state of the episode, for `restore` (capability "snapshot")."""
        return await self.query("snapshot")

    async def restore(self, state: bytes, *, seed: int | None = None) -> None:
        """Go on from a snapshot of this environment. With `seed`, chance from there on is drawn from it: another future
        of the same state. Without, the future is the one that the snapshot's episode had."""
        ...

    async def close(self) -> None:
        """End the session and free its environment. A second call does nothing."""
        ...


class SessionThread:
    """A daemon thread that makes one environment's calls in order, so that an environment that hangs is left behind,
    not waited for.

    Every call of an environment comes from the same thread, as browsers and databases ask. A thread cannot be killed:
    after a missed deadline it is `stuck` until the environment returns, but keeps neither process nor event loop from
    ending.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.stuck = False
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._awaited: asyncio.Future[Any] | None = None

    async def call(self, function: Callable[[], Any], deadline_s: float) -> Any:
        """Call `function` in the thread; return or raise as it does.

        Raises DeadlineExceeded after `deadline_s`, EpisodeLost ever after.
        """
        if self.stuck:
            raise EpisodeLost(f"{self.name} missed a deadline and is gone; open a new session")
        loop = asyncio.get_running_loop()
        future = self._awaited = loop.create_future()
        self._put((function, future, loop))
        done, _ = await asyncio.wait((future,), timeout=deadline_s)
        if not done:
            self.stuck = True
            future.cancel()
            raise DeadlineExceeded(f"{self.name} gave no answer in {deadline_s:g} s")
        return future.result()

    def stop(self, last: Callable[[], Any] = lambda: None) -> None:
        """End the thread once the present call has returned and `last` has run in it. Returns at once.

        Whoever awaits the present call gets EpisodeLost at once. To be called in the event loop of the calls.
        """
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_exception(EpisodeLost(f"{self.name} was closed while this call was running"))
        self._put((last, None, None))
        self._calls.put(None)

    def _put(self, call: Any) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"agentgym-{self.name}", daemon=True)
            self._thread.start()
        self._calls.put(call)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            function, future, loop = call
            result, error = None, None
            try:
                result = function()
            except BaseException as caught:  # noqa: BLE001  (handed to whoever awaits the call)
                # A future takes no StopIteration, and an environment that calls sys.exit() must not end the event loop.
                plain = isinstance(caught, Exception) and not isinstance(caught, StopIteration)
                error = caught if plain else RuntimeError(f"{type(caught).__name__}: {caught}")
            if future is not None:
                with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                    loop.call_soon_threadsafe(_settle, future, result, error)
            elif error is not None:
                logging.getLogger(__name__).warning("closing %s failed: %r", self.name, error)
            del function, future, loop, result, error, call


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class LocalSession(Session):
    """A session of an environment in this process. Its steps run in a thread unless the spec says `inline`."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.spec = env.env_spec
        self._thread = None if self.spec.inline else SessionThread(self.spec.id)
        self.closed = False

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Step:
        """Begin an episode and return its first observation, with reward 0."""
        return await self.call(lambda: _opening(self.env.reset(seed=seed, options=options)))

    async def step(self, action: Action) -> Step:
        """Take one action and return its result."""
        return await self.call(lambda: _step(self.env.step(action), self.spec.id))

    async def query(self, name: str) -> Any:
        """Return what the environment's method `name` returns."""
        return await self.call(lambda: getattr(self.env, name)())

    async def restore(self, state: bytes, *, seed: int | None = None) -> None:
        """Continue from a snapshot; with `seed`, chance from there on is drawn from it."""
        await self.call(lambda: self.env.restore(state))
        if seed is not None:
            await self.call(lambda: self.env.reseed(seed))

    async def close(self) -> None:
        """Close the environment. A second call does nothing."""
        if self.closed:
            return
        self.closed = True
        if self._thread is not None and self._thread.stuck:
            self._thread.stop(self.env.close)
        else:
            await self.call(self.env.close)
            if self._thread is not None:
                self._thread.stop()

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call `function` in the environment's thread. Raises EnvironmentCrashed for an error of its author."""
        try:
            if self._thread is None:
                return function()
            return await self._thread.call(function, self.spec.step_deadline_s)
        except EnvironmentFailure:
            raise
        except (Exception, SystemExit) as error:  # the environment's author may raise anything; the rollout records it
            raise EnvironmentCrashed(f"{self.spec.id} raised {type(error).__name__}: {error}") from error


def _opening(answer: Any) -> Step:
    observation, info = answer
    return Step(observation, 0.0, False, False, info)


def _step(answer: Any, env: str) -> Step:
    """Raises EnvironmentCrashed for a reward that is no number and ends that are no bools."""
    observation, reward, terminated, truncated, info = answer
    if not isinstance(reward, float) and (problem := reward_problem(reward)):  # of a float, the caller judges
        raise EnvironmentCrashed(f"{env} broke its contract in step: {problem}")
    if not (isinstance(terminated, bool | np.bool_) and isinstance(truncated, bool | np.bool_)):
        raise EnvironmentCrashed(
            f"{env} broke its contract in step: terminated and truncated should be bools, they are "
            f"{terminated!r:.60} and {truncated!r:.60}"
        )
    return Step(observation, float(reward), bool(terminated), bool(truncated), info)
