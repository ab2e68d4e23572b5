"""The training loop: collect, collate, annotate, shape rewards, assign credit, update, load weights into the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from agentgym.errors import CheckpointError
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.runner import Runner
from agentgym.rollouts.trajectory import Group, Trajectory
from agentgym.spec import EnvSpec
from agentgym_credit.batch import Batch, Credit
from agentgym_trainers.config.sections import Config
from agentgym_trainers.credit.assign import apply_stages, assign_credit
from agentgym_trainers.data.filtering import Selection
from agentgym_trainers.data.replay_buffer import ReplayBuffer
from agentgym_trainers.data.reward_shaping import shape_rewards
from agentgym_trainers.data.sequences import Row, collate
from agentgym_trainers.distributed.learner_group import LearnerGroup
from agentgym_trainers.engines.base import Engine
from agentgym_trainers.engines.build import sampling_params
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.learner.replay_update import replay_update
from agentgym_trainers.monitoring.guards import Guards, check_played
from agentgym_trainers.monitoring.metrics import MetricsLog, credit_metrics, rollout_metrics
from agentgym_trainers.monitoring.trajectory_log import write_trajectories
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.rollout.concurrency import beside_the_loop
from agentgym_trainers.rollout.policy import TokenPolicy
from agentgym_trainers.rollout.sources.base import Source
from agentgym_trainers.rollout.tasks import UniformTasks
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.signals.annotate import annotate, fit_signals, resample_actions
from agentgym_trainers.signals.base import Signal, SignalContext

OnStep = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True)
class TrainStepResult:
    """The batch, credit and metrics of one training step."""

    batch: Batch
    credit: Credit
    trajectories: Sequence[Trajectory]
    metrics: dict[str, float]


@dataclass
class Trainer:
    """The parts of one run, built by `build`."""

    config: Config
    folder: Path
    spec: EnvSpec
    runner: Runner
    learner: Learner | LearnerGroup
    engine: Engine
    tokenizer: Any
    curriculum: UniformTasks
    source: Source
    signals: dict[str, Signal]
    guards: Guards
    selection: Selection | None = None
    buffer: ReplayBuffer | None = None
    step: int = 0

    async def run(self, log: MetricsLog, on_step: OnStep = lambda step, metrics: None) -> None:
        """Train from the present step to the last."""
        run = self.config.run
        try:
            await self.publish()
            while self.step < run.steps:
                metrics = await self.guards.before_step(self.step)
                started = perf_counter()
                self.schedule()
                played, groups, more = await self.collect_until_full()
                collected = perf_counter()
                result = await self.train_step(groups) if groups else None
                self.step += 1
                await self.publish()
                episodes = [t for group in played for t in group.trajectories]
                metrics |= rollout_metrics(episodes)
                metrics |= more | (result.metrics if result is not None else {})
                metrics |= {"time/rollout_s": collected - started, "time/learn_s": perf_counter() - collected}
                self.record(log, metrics, result)
                log.trackers.log_episodes(self.step, episodes)
                on_step(self.step, metrics)
        finally:
            await self.source.close()

    async def train_step(self, groups: list[Group]) -> TrainStepResult:
        """Learn from `groups`; in a thread of its own where episodes are played meanwhile."""
        if not self.source.concurrent:
            return await self.learn(groups)
        result = await beside_the_loop(lambda: self.learn(groups))
        result.metrics.update(self.source.metrics())
        return result

    async def learn(self, groups: list[Group]) -> TrainStepResult:
        """The training step: from trajectories to new weights of the policy, the critic and the signals."""
        config, prox = self.config, "prox_logprob_A" in self.config.all_needs
        context = self.make_context(groups)
        context, metrics = await annotate(context, self.learner, self.signals, prox=prox)
        chosen = self.selection.apply(context, config) if self.selection is not None else context
        trained = await resample_actions(chosen, self.learner, self.signals, prox=prox)
        batch = shape_rewards(trained.batch, config.shaping)
        credit, skills = assign_credit(batch, config.credit)
        credit, more = apply_stages(batch, credit, config, self.step)
        metrics |= skills | more | credit_metrics(batch, credit)
        metrics |= self.update(batch, trained.rows, credit)
        if config.replay is not None and self.buffer is not None and trained.trajectories and not self.in_warmup:
            episodes = trained.batch, credit, trained.trajectories
            metrics |= replay_update(self.learner, self.buffer, config.replay, *episodes, self.step, config.run.seed)
        metrics |= await fit_signals(context, self.signals, first=False)
        if not trained.trajectories:  # nobody played what the policy learned from: shown is what was played
            batch = shape_rewards(chosen.batch, config.shaping)
            return TrainStepResult(batch, assign_credit(batch, config.credit)[0], chosen.trajectories, metrics)
        return TrainStepResult(batch, credit, trained.trajectories, metrics)

    def update(self, batch: Batch, rows: Sequence[Row], credit: Credit) -> dict[str, float]:
        """All epochs and mini-batches of the step."""
        stop = self.guards.after_batch
        return self.learner.train_step(
            batch, rows, credit, self.config, self.step, folder=self.folder, stop=stop, warmup=self.in_warmup
        )

    @property
    def in_warmup(self) -> bool:
        """The policy waits: the critic or a signal still learns alone."""
        value = self.config.value
        waits = value is not None and self.step < value.warmup
        return waits or any(self.step < signal.warmup for signal in self.signals.values())

    async def publish(self) -> None:
        """Let the engine sample from the learner's weights, whose version is the step."""
        await self.engine.refresh(self.learner.weights(), self.step)

    def schedule(self) -> None:
        """Set every scheduled option to what it is in this step."""
        if not self.config.schedules:
            return
        self.config = self.config.at(self.step)
        self.runner = replace(self.runner, limits=replace(self.runner.limits, max_turns=self.config.env.max_turns))
        self.learner.set_lr(self.config.optim.lr)

    async def collect_until_full(self) -> tuple[list[Group], list[Group], dict[str, float]]:
        """Collect (all groups, those to learn from, metrics). Where the filter leaves fewer groups than the recipe
        has, the source is asked again, `select.tries` times at most."""
        options, selection, wanted = self.config.select, self.selection, self.config.rollout.groups
        played, kept, tries = [], [], 0
        while not tries or (options is not None and tries < options.tries and len(kept) < wanted):
            groups, tries = await self.collect(), tries + 1
            played += groups
            kept += selection.choose(groups, options) if selection is not None and options is not None else groups
        check_played(played, self.step, self.config)
        if self.buffer is not None:
            self.buffer.remember(played)
        if selection is None:
            return played, kept[:wanted], {}
        self.guards.after_filter(self.step, played, kept, options)
        counted, left = (sum(len(g.without_failures().trajectories) for g in some) for some in (played, kept[:wanted]))
        return played, kept[:wanted], {"select/discarded": 1 - left / counted, "select/tries": float(tries)}

    async def collect(self) -> list[Group]:
        """Episodes for a step, from the recipe's source."""
        return await self.source.collect(self, self.config.rollout.groups)

    async def rollout_groups(self, tasks: Sequence[tuple[int, int]]) -> list[Group]:
        """One group of attempts for each (task, environment seed), all episodes at once."""
        size = self.config.rollout.group_size
        env, split = self.spec.id, self.config.env.split
        episodes = [EpisodeSpec(env, split, task, seed, attempt) for task, seed in tasks for attempt in range(size)]
        trajectories = await self.runner.run(self.policy(self.config.run.seed, self.step), episodes)
        return [Group(tuple(trajectories[i : i + size])) for i in range(0, len(trajectories), size)]

    def make_context(self, groups: list[Group]) -> SignalContext:
        """The step's batch and sequences: failures are dropped, never scored."""
        batch, rows, trajectories = collate(groups)
        return SignalContext(
            batch, rows, trajectories, self.step, np.random.default_rng([self.config.run.seed, self.step, 2])
        )

    def record(self, log: MetricsLog, metrics: dict[str, float], result: TrainStepResult | None) -> None:
        """Write the finished step's metrics, and its trajectories and a checkpoint where one is due."""
        run = self.config.run
        log.write("rl", self.step, metrics)
        self.guards.after_step(self.step, metrics)
        if result is not None and (self.step % run.trajectories_every == 0 or self.step == run.steps):
            path = self.folder / "trajectories" / f"step-{self.step:06d}.jsonl"
            write_trajectories(path, result.batch, result.credit, result.trajectories, self.tokenizer)
        if self.step % run.checkpoint_every == 0 or self.step == run.steps:
            self.save(log)

    def policy(self, *salt: int) -> TokenPolicy:
        """The policy being trained; `salt` decides its random streams."""
        template = ChatTemplate(self.tokenizer, self.config.model.template)
        return TokenPolicy(self.engine, template, sampling_params(self.config, template), salt)

    def save(self, log: MetricsLog) -> Path:
        """A checkpoint of everything that decides the rest of the run."""
        state = {
            "step": self.step,
            "curriculum": self.curriculum.state_dict(),
            "source": self.source.state_dict(),
            "selection": self.selection.state_dict() if self.selection is not None else None,
            "replay": self.buffer.state_dict() if self.buffer is not None else None,
            "signals": {name: signal.state_dict() for name, signal in self.signals.items()},
            "torch_rng": torch.get_rng_state(),
            **log.state_dict(),
        }
        folder = self.folder / "checkpoints" / f"step-{self.step:06d}"
        weights = self.learner.weights()
        checkpoint.save(
            folder,
            self.learner.model,
            self.tokenizer,
            lambda partial: {**self.learner.save_state(partial), **state},
            weights,
        )
        kept = checkpoint.prune(self.folder, self.config.run.keep_checkpoints)
        self.source.prune(checkpoint.step_of(kept[0]) if kept else 0)
        return folder

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint's state; the model itself was loaded when the trainer was built.

        Raises CheckpointError for a state that is not this run's.
        """
        try:
            self._load(state)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the trainer.pt of step {state.get('step')} does not fit this run ({type(error).__name__}: {error}); "
                "delete that checkpoint to go on from the one before"
            ) from error

    def _load(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.learner.load_state_dict(state)
        self.curriculum.load_state_dict(state["curriculum"])
        self.source.load_state_dict(state["source"])
        for part, name in ((self.selection, "selection"), (self.buffer, "replay")):
            if part is not None:
                part.load_state_dict(state[name])
        for name, signal in self.signals.items():
            signal.load_state_dict(state["signals"][name])
        torch.set_rng_state(state["torch_rng"])
