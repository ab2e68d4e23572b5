"""Rollout workers on several machines: each has environments, an engine and a Runner, and plays a share of a step's
episodes.

publish  the weights go into Ray's object store once a version; a job names the version and has the reference
play     neighbouring episodes, which begin alike, go to one worker; with `rollout.staleness` each goes by itself, and
         new weights reach the workers while they play
ask      replies in given states and continuations of episodes, which signals ask for, are shared out in the same way;
         where episodes are played meanwhile, beside them
lost     a worker that is gone or silent is started again by Ray, and its episodes are played by another: the same
         task and seeds, and in turns the same weights, so no prompt is lost and none is learned from twice
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor

from agentgym.clients.client import key_in_use, use_key
from agentgym.errors import AgentGymError, PolicyFailure
from agentgym.rollouts.policy import EpisodeSpec, Policy
from agentgym.rollouts.runner import EpisodePrefix, Limits, Runner
from agentgym.rollouts.trajectory import Trajectory
from agentgym_trainers.config.sections import Config
from agentgym_trainers.distributed.ray_cluster import Cluster
from agentgym_trainers.distributed.rollout_jobs import Continuation, ReplyState, RolloutJob, Weights
from agentgym_trainers.engines import ENGINES
from agentgym_trainers.engines.base import Completion, Engine
from agentgym_trainers.engines.build import build_engine, inference_copy, sampling_params
from agentgym_trainers.monitoring.wait_tracker import ENGINE, ENV, WORKER, TrackedPolicy, name_of
from agentgym_trainers.rollout.concurrency import gather_or_cancel
from agentgym_trainers.rollout.environment import open_env
from agentgym_trainers.rollout.external.serving import Host, host_in_use, use_host
from agentgym_trainers.rollout.monte_carlo import BranchJob, Continuations
from agentgym_trainers.rollout.player import PolicyPlayer, sample_replies
from agentgym_trainers.rollout.policy import TokenPolicy
from agentgym_trainers.rollout.sources import SOURCES
from agentgym_trainers.rollout.tokens import ChatTemplate

MAX_WORKER_FAILURES = 3
"""Workers that a share of episodes may lose, one after the other."""
START_S = 300.0
"""Seconds beyond the episodes' own deadlines: to restart a worker and its environment, and to fetch the weights."""
POLL_S = 0.5
"""Seconds between two checks whether a worker is back."""


@dataclass(frozen=True)
class WorkerSetup:
    """Everything that a worker is made from."""

    config: Config
    """Its `rollout.concurrency` is the worker's."""
    model: Any
    tokenizer: Any
    folder: Path
    """The run's, on the controller's machine."""
    key: str | None
    """API key of environments behind a gateway."""
    host: Host | None
    """The server of the policy for external agents."""
    signals_play: bool = False
    """See `build_engine`."""


class RolloutWorker:
    """One of the processes: a Ray actor. It opens its environment and makes its engine at its first job."""

    def __init__(self, setup: tuple[Any]) -> None:
        """A reference to a WorkerSetup, in a tuple."""
        self._setup = setup
        self._stack, self._changing = AsyncExitStack(), asyncio.Lock()
        self._jobs = self._signal_jobs = asyncio.Semaphore()
        self._engine: Any = None
        self._shared = False
        """True where it samples from servers that the controller gives their weights."""
        self._version = -1
        """Version of the weights that the engine samples from."""
        self._newest = Weights()
        self._free = asyncio.Event()
        """Cleared while vLLM's weights change."""
        self._free.set()

    async def answers(self) -> None:
        """Return, which shows that the worker is alive."""

    async def play(self, job: RolloutJob, weights: Weights, episodes: Sequence[EpisodeSpec]) -> list[Trajectory]:
        """One trajectory an episode, in order. A job that finds no room for its sequences waits for it."""
        async with self._ready(weights) as policy:
            use_host(self._host)
            return await self._runner_of(job).run(replace(policy, salt=job.salt), episodes)

    async def go_on(self, job: RolloutJob, weights: Weights, share: Sequence[Continuation]) -> list[Trajectory]:
        """One trajectory a continuation, in order."""
        async with self._ready(weights, for_signals=True) as policy:
            jobs = [each.job.over(self.template) for each in share]
            going = Continuations(replace(policy, salt=job.salt), jobs, share[0].episode.attempt)
            episodes, pasts = [each.episode for each in share], [each.past for each in share]
            return await self._runner_of(job).run(going, episodes, pasts)

    async def reply(self, job: RolloutJob, weights: Weights, states: Sequence[ReplyState]) -> list[list[Completion]]:
        """Replies in each state, in order."""
        async with self._ready(weights, for_signals=True) as policy:
            prompts, seeds = [state.prompt for state in states], [state.seed for state in states]
            sampling, count = policy.sampling, states[0].count
            return await sample_replies(policy.engine, sampling, prompts, seeds, count, job.concurrency)

    @asynccontextmanager
    async def _ready(self, weights: Weights, *, for_signals: bool = False) -> AsyncIterator[TokenPolicy]:
        """The policy with at least these weights, and room for a job."""
        async with self._changing:
            engine = self._engine or await self._start()
        async with self._signal_jobs if for_signals else self._jobs:
            await self._free.wait()
            await self._catch_up(weights)
            yield TokenPolicy(engine, self.template, sampling_params(self.config, self.template))

    def _runner_of(self, job: RolloutJob) -> Runner:
        return replace(
            self._runner,
            prompt_format=job.prompt_format,
            limits=job.limits,
            concurrency=job.concurrency,
            retries=job.retries,
        )

    async def hold(self) -> None:
        """Ask vLLM nothing until `renew`. Returns when nothing is under way there."""
        self._free.clear()
        if self._shared and self._engine is not None:
            await self._engine.hold()

    async def renew(self, weights: Weights) -> None:
        """Sample from these from now on, replies under way too."""
        await self._catch_up(weights)
        if self._shared and self._engine is not None:
            self._engine.release()
        self._free.set()

    async def _catch_up(self, weights: Weights) -> None:
        """The engine samples from the newest that are known, as soon as there is one."""
        async with self._changing:
            newest = self._newest = max(self._newest, weights, key=lambda given: given.version)
            if self._engine is None or newest.version <= self._version:
                return
            if self._shared:
                await self._engine.attach(newest.version)
            else:
                await self._engine.refresh(await newest.reference[0], newest.version)
            self._version = newest.version

    async def _start(self) -> Engine:
        setup: WorkerSetup = await self._setup[0]
        self.config, self._host = setup.config, setup.host
        if self.config.run.threads is not None:
            torch.set_num_threads(self.config.run.threads)
        use_key(setup.key)
        self.template = ChatTemplate(setup.tokenizer, self.config.model.template)
        rollout, source = self.config.rollout, SOURCES[self.config.source.kind]
        if not source.serves_policy:  # its programs have environments of their own
            self._env, _ = await self._stack.enter_async_context(open_env(self.config, Progress(disable=True)))
        runner = Runner(self._open_session, self.config.prompt_format, Limits())
        self._runner = source.runner(self.config, runner, setup.folder)
        # A step's share fills the engine; with `staleness` a job is one episode, and signals have room beside them.
        if rollout.staleness:
            self._jobs, self._signal_jobs = asyncio.Semaphore(rollout.concurrency), asyncio.Semaphore()
        self._shared = ENGINES[self.config.engine.kind].servers  # whose weights are the controller's matter
        model, signals = None if self._shared else setup.model, setup.signals_play
        self._engine = build_engine(self.config, Path(), model, setup.tokenizer, signals_play=signals)
        return self._engine

    async def _open_session(self) -> Any:
        return self._env.session()


class RolloutWorkerPool:
    """The workers of a run, as the controller knows them."""

    def __init__(
        self, cluster: Cluster, config: Config, folder: Path, model: Any, tokenizer: Any, *, signals_play: bool
    ) -> None:
        """`model` is sampled from, but by vLLM. `signals_play`: see `build_engine`."""
        self._ray, count, self._shared = cluster.ray, cluster.options.workers, ENGINES[config.engine.kind].servers
        self._deadline_s, self._streamed = cluster.options.deadline_s, config.rollout.staleness > 0
        self.concurrency = ceil(config.rollout.concurrency / count)
        own = config.model_copy(
            update={"rollout": config.rollout.model_copy(update={"concurrency": self.concurrency}), "scale": None}
        )
        model = None if self._shared else inference_copy(config, model)
        setup = WorkerSetup(own, model, tokenizer, folder.resolve(), key_in_use(), host_in_use(), signals_play)
        self._setup = (self._ray.put(setup),)  # kept: workers that are started again read it
        self.workers = [cluster.place("worker", RolloutWorker, self._setup, restarts=-1) for _ in range(count)]
        self.lost = 0
        """Workers, so far."""
        self.starting: dict[int, asyncio.Task[None]] = {}
        """Those that were lost and are not back yet."""
        self._playing = [0] * count
        """Episodes, of each worker."""
        self._weights = Weights()
        self._weights_ready = asyncio.Event()
        """Cleared while the weights change: who begins now might take the new ones for the old."""

    async def hold(self) -> None:
        """No worker sends vLLM anything until `publish`. Returns when nothing of theirs is under way."""
        self._weights_ready.clear()
        if self._streamed:
            await self._each("hold")

    async def publish(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Workers sample from these from their next job on, and with `staleness` at once; vLLM's servers have them
        already."""
        self._weights = Weights(version, () if self._shared else (self._ray.put(dict(weights)),))
        if self._streamed:
            await self._each("renew", self._weights)
        self._weights_ready.set()

    async def _each(self, method: str, *arguments: Any) -> None:
        """Call a method of every worker that is there; one that is silent is ended, and started again."""
        from ray.exceptions import RayActorError, RayTaskError  # pyright: ignore[reportMissingImports]

        async def call(number: int) -> None:
            try:
                async with asyncio.timeout(self._deadline_s):
                    await getattr(self.workers[number], method).remote(*arguments)
            except RayActorError:
                pass  # whoever waits for its episodes sees to it
            except TimeoutError:
                self._ray.kill(self.workers[number], no_restart=False)
            except RayTaskError as error:
                raise error.cause if isinstance(error.cause, AgentGymError) else error from None

        await asyncio.gather(*(call(number) for number in range(len(self.workers)) if number not in self.starting))

    def job(self, runner: Runner, salt: tuple[int, ...]) -> RolloutJob:
        return RolloutJob(salt, runner.prompt_format, runner.limits, self.concurrency, runner.retries)

    async def play(self, job: RolloutJob, episodes: Sequence[EpisodeSpec]) -> list[Trajectory]:
        """One trajectory an episode, in order. Raises PolicyFailure where worker after worker is lost."""
        return await self._spread("play", job, episodes)

    async def go_on(self, job: RolloutJob, continuations: Sequence[Continuation]) -> list[Trajectory]:
        """The same of continuations, whose episodes are numbered one after the other."""
        return await self._spread("go_on", job, continuations)

    async def reply(self, job: RolloutJob, states: Sequence[ReplyState]) -> list[list[Completion]]:
        """Replies in each state, in order. Raises PolicyFailure as `play` does."""
        return await self._spread("reply", job, states)

    async def _spread(self, method: str, job: RolloutJob, work: Sequence[Any]) -> list[Any]:
        """A result for each piece of work, in order: neighbours are the same worker's."""
        count = min(len(self.workers), len(work))
        parts = np.array_split(np.arange(len(work)), count) if count else []
        results = await gather_or_cancel(self._share(method, job, [work[i] for i in part]) for part in parts)
        return [result for share in results for result in share]

    async def _share(self, method: str, job: RolloutJob, work: list[Any]) -> list[Any]:
        from ray.exceptions import RayActorError, RayTaskError  # pyright: ignore[reportMissingImports]

        why = ""
        for _ in range(MAX_WORKER_FAILURES):
            number = await self._pick()
            self._playing[number] += len(work)
            waves = ceil(self._playing[number] / job.concurrency)
            deadline_s = (job.retries + 1) * waves * job.limits.episode_s + START_S
            try:
                async with asyncio.timeout(deadline_s):
                    return await getattr(self.workers[number], method).remote(job, self._weights, work)
            except RayActorError:
                why = "its process was gone"
            except TimeoutError:
                why = f"it did not answer within {deadline_s:g} s"
                self._ray.kill(self.workers[number], no_restart=False)
            except RayTaskError as error:
                raise error.cause if isinstance(error.cause, AgentGymError) else error from None
            finally:
                self._playing[number] -= len(work)
            if number not in self.starting:  # else another of its shares has seen it
                self.lost += 1
                self.starting[number] = asyncio.ensure_future(self._back(number))
        raise PolicyFailure(
            f"{MAX_WORKER_FAILURES} rollout workers were lost over the same {len(work)} episodes; the last: {why}. "
            "Give workers more memory, or fewer episodes at once (rollout.concurrency), and resume"
        )

    async def _pick(self) -> int:
        """The worker that plays the fewest episodes, of those that are there. Raises PolicyFailure where none is."""
        until = monotonic() + START_S
        while True:
            await self._weights_ready.wait()
            there = [number for number in range(len(self.workers)) if number not in self.starting]
            if there:
                return min(there, key=lambda number: (self._playing[number], number))
            if monotonic() > until:
                raise PolicyFailure(f"all rollout workers were lost, and none was back within {START_S:g} s")
            await asyncio.sleep(POLL_S)

    async def _back(self, number: int) -> None:
        """Wait until Ray has started a worker again."""
        from ray.exceptions import RayActorError  # pyright: ignore[reportMissingImports]

        while number in self.starting:
            await asyncio.sleep(POLL_S)
            try:
                await self.workers[number].answers.remote()
            except RayActorError:
                continue
            del self.starting[number]


@dataclass(frozen=True, kw_only=True)
class RemoteRunner(Runner):
    """A Runner whose episodes are played by a pool, with the token policy of the run."""

    pool: RolloutWorkerPool

    async def run(
        self, policy: Policy, episodes: Sequence[EpisodeSpec], pasts: Sequence[EpisodePrefix] | None = None
    ) -> list[Trajectory]:
        watched = policy if isinstance(policy, TrackedPolicy) else None
        policy = policy if watched is None else watched.policy
        if isinstance(policy, Continuations) and isinstance(policy.policy, TokenPolicy) and pasts is not None:
            sent: dict[int, BranchJob] = {}  # a state's continuations share it
            jobs = [sent.setdefault(id(job), job.over(None)) for job in policy.jobs]
            work = [Continuation(*each) for each in zip(episodes, pasts, jobs, strict=True)]
            return await self.pool.go_on(self.pool.job(self, policy.policy.salt), work)
        if not isinstance(policy, TokenPolicy) or pasts is not None:
            return await Runner.run(self, watched or policy, episodes, pasts)
        job = self.pool.job(self, policy.salt)
        if watched is None:
            return await self.pool.play(job, episodes)
        names = [name_of(episode) for episode in episodes]
        try:
            for name in names:
                watched.watch.now_for(name, WORKER)
            played = await self.pool.play(job, episodes)
        finally:
            for name in names:
                watched.watch.now_for(name, None)
        turns = [turn for trajectory in played for turn in trajectory.turns]
        watched.watch.spent[ENGINE] += sum(turn.policy_s for turn in turns)
        watched.watch.spent[ENV] += sum(turn.env_s for turn in turns)
        return played


@dataclass(frozen=True)
class RemotePlayer(PolicyPlayer):
    """A PolicyPlayer whose replies are a pool's."""

    runner: RemoteRunner

    async def _replies(
        self, states: Sequence[Sequence[int]], seeds: Sequence[int], count: int
    ) -> list[list[Completion]]:
        pool = self.runner.pool
        work = [ReplyState(state, seed, count) for state, seed in zip(states, seeds, strict=True)]
        return await pool.reply(pool.job(self.runner, ()), work)
