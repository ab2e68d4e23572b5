"""The loop. It reads like the way of a turn: propose, roll out, collate, read signals, assign credit, update."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agentgym.errors import GuardTripped, PolicyFailure
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.runner import Runner
from agentgym.rollouts.trajectory import Group, StopReason, Trajectory
from agentgym.spec import EnvSpec
from agentgym_trainers.config.sections import Config
from agentgym_trainers.credit import assigner_of, normalise
from agentgym_trainers.credit.outcome import recalibrated
from agentgym_trainers.data.batch import Batch, Credit
from agentgym_trainers.data.filtering import Selection
from agentgym_trainers.data.replay_buffer import ReplayBuffer
from agentgym_trainers.data.reward_shaping import SHAPERS
from agentgym_trainers.data.sequences import Row, collate, is_demonstration, select
from agentgym_trainers.engines.base import Engine, Sampling
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.learner.nonfinite import keep_skipped
from agentgym_trainers.losses import OBJECTIVES
from agentgym_trainers.losses.importance import apply as correct
from agentgym_trainers.monitoring.guards import Guards
from agentgym_trainers.monitoring.metrics import MetricsLog, credit_metrics, rollout_metrics
from agentgym_trainers.monitoring.trajectory_log import write_trajectories
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.rollout.policy import TokenPolicy
from agentgym_trainers.rollout.sources import Source
from agentgym_trainers.rollout.sources.asynchronous import StreamedSource, fresh
from agentgym_trainers.rollout.tasks import UniformTasks
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.signals import Scene, Signal

if TYPE_CHECKING:
    from agentgym_trainers.distributed.learner_group import Learners

OnStep = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True)
class Lesson:
    """What a step learned from, and what came of it."""

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
    learner: Learner | Learners
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
        """From the present step to the last."""
        try:
            await self._run(log, on_step)
        finally:
            if isinstance(self.source, StreamedSource):
                await self.source.close()

    async def _run(self, log: MetricsLog, on_step: OnStep) -> None:
        run = self.config.run
        await self.publish()
        while self.step < run.steps:
            watched = await self.guards.before_step(self.step)
            started = perf_counter()
            self.schedule()
            played, groups, metrics = await self.gather()
            collected = perf_counter()
            lesson = await self.lesson(groups) if groups else None
            self.step += 1
            await self.publish()
            metrics |= rollout_metrics([t for group in played for t in group.trajectories])
            metrics |= watched | (lesson.metrics if lesson is not None else {})
            metrics |= {"time/rollout_s": collected - started, "time/learn_s": perf_counter() - collected}
            log.write("rl", self.step, metrics)
            self.guards.after_step(self.step, metrics)
            if lesson is not None and (self.step % run.trajectories_every == 0 or self.step == run.steps):
                path = self.folder / "trajectories" / f"step-{self.step:06d}.jsonl"
                write_trajectories(path, lesson.batch, lesson.credit, lesson.trajectories, self.tokenizer)
            if self.step % run.checkpoint_every == 0 or self.step == run.steps:
                self.save(log)
            on_step(self.step, metrics)

    async def publish(self) -> None:
        """Let the engine sample from the learner's weights, whose version is the step."""
        await self.engine.refresh(self.learner.weights(), self.step)

    def schedule(self) -> None:
        """Set every scheduled option to what it is in this step."""
        if not self.config.schedules:
            return
        self.config = self.config.at(self.step)
        self.runner = replace(self.runner, limits=replace(self.runner.limits, max_turns=self.config.world.max_turns))
        self.learner.set_lr(self.config.optim.lr)

    def correct(self, batch: Batch, credit: Credit) -> tuple[Credit, dict[str, float]]:
        """The credit, its tokens weighed by the recipe's corrector."""
        options = self.config.correct
        if options is None:
            return credit, {}
        weight_A, seen = correct(options, batch.x["prox_logprob_A"], batch.logprob_A, batch, self.step)
        if credit.weight_A is not None:
            weight_A = weight_A * credit.weight_A
        return replace(credit, weight_A=weight_A), {f"correct/{name}": value for name, value in seen.items()}

    async def lesson(self, groups: list[Group]) -> Lesson:
        """`learn`, and where episodes are played meanwhile, in a thread of its own."""
        if not isinstance(self.source, StreamedSource):
            return await self.learn(groups)
        lesson = await asyncio.to_thread(lambda: asyncio.run(self.learn(groups)))
        lesson.metrics.update(self.source.told())
        return lesson

    async def learn(self, groups: list[Group]) -> Lesson:
        """A step's way from episodes to weights."""
        scene, metrics = await self.annotate(self.scene(groups))
        chosen = self.select(scene)
        actor = await self.actor(chosen)
        batch = shape(actor.batch, self.config)
        credit = assign(batch, self.config)
        if "kept_M" in batch.x:
            credit = replace(credit, advantage_A=credit.advantage_A * batch.x["kept_M"][batch.traj_A])
        credit, seen = self.correct(batch, credit)
        if self.config.rollout.staleness:
            credit, aged = fresh(batch, credit, self.step, self.config.rollout.staleness)
            seen |= aged
        metrics |= seen | credit_metrics(batch, credit) | self.update(batch, actor.rows, credit)
        metrics |= self.relive(actor, credit)
        metrics |= await self.fit(scene, first=False)
        if not actor.trajectories:  # nobody played what the policy learned from: shown is what was played
            batch = shape(chosen.batch, self.config)
            return Lesson(batch, assign(batch, self.config), chosen.trajectories, metrics)
        return Lesson(batch, credit, actor.trajectories, metrics)

    async def gather(self) -> tuple[list[Group], list[Group], dict[str, float]]:
        """(what was played, what of it is learned from, how much is not). Where the selector leaves fewer groups than
        the recipe has, the source is asked again."""
        options, selection, wanted = self.config.select, self.selection, self.config.rollout.groups
        played, kept, tries = [], [], 0
        while not tries or (options is not None and tries < options.tries and len(kept) < wanted):
            groups, tries = await self.collect(), tries + 1
            played += groups
            kept += selection.choose(groups, options) if selection is not None and options is not None else groups
        counted, left = (sum(len(g.without_failures().trajectories) for g in some) for some in (played, kept[:wanted]))
        episodes = [t for group in played for t in group.trajectories if not is_demonstration(t)]
        check_context([t.stop for t in episodes], f"step {self.step + 1}", self.config)
        if not counted:
            first = episodes[0]
            raise PolicyFailure(
                f"every episode of step {self.step + 1} failed: {first.error or f'the first ended {first.stop.value}'}"
            )
        if self.buffer is not None:
            self.buffer.remember(played)
        told = {"select/discarded": 1 - left / counted, "select/tries": float(tries)} if selection is not None else {}
        return played, kept[:wanted], told

    async def collect(self) -> list[Group]:
        """Episodes for a step, from the recipe's source."""
        return await self.source.collect(self, self.config.rollout.groups)

    async def play(self, tasks: Sequence[tuple[int, int]]) -> list[Group]:
        """One group of attempts for each (task, world seed), all episodes at once."""
        size = self.config.rollout.group_size
        env, split = self.spec.id, self.config.world.split
        episodes = [EpisodeSpec(env, split, task, seed, attempt) for task, seed in tasks for attempt in range(size)]
        trajectories = await self.runner.run(self.policy(self.config.run.seed, self.step), episodes)
        return [Group(tuple(trajectories[i : i + size])) for i in range(0, len(trajectories), size)]

    def scene(self, groups: list[Group]) -> Scene:
        """What is learned from: failures are dropped, never scored."""
        batch, rows, trajectories = collate(groups)
        return Scene(batch, rows, trajectories, self.step, np.random.default_rng([self.config.run.seed, self.step, 2]))

    async def annotate(self, scene: Scene) -> tuple[Scene, dict[str, float]]:
        """The scene with all columns, and what the signals that learn before they speak have to tell."""
        scene = replace(scene, batch=self.consider(scene.batch, scene.rows))
        metrics = await self.fit(scene, first=True)
        for signal in self.signals.values():
            scene = replace(scene, batch=scene.batch.with_columns(**await signal.annotate(scene)))
        return scene, metrics

    def consider(self, batch: Batch, rows: Sequence[Row]) -> Batch:
        """The batch with the columns of critic, reference and present policy, where a part needs them."""
        return self.learner.annotate(batch, rows, prox="prox_logprob_A" in self.config.all_needs)

    async def fit(self, scene: Scene, *, first: bool) -> dict[str, float]:
        """Train the signals whose turn it is."""
        metrics = {}
        for name, signal in self.signals.items():
            if signal.fit_first == first:
                metrics |= {f"{name}/{key}": value for key, value in (await signal.fit(scene)).items()}
        return metrics

    def select(self, scene: Scene) -> Scene:
        """What the recipe keeps of the scene, where its selector waited for what models say. They learn from it all: a
        critic, whose loss is the policy's batch, by what is dropped having no advantage there."""
        options, selection = self.config.select, self.selection
        if options is None or selection is None or not selection.waits:
            return scene
        kept_M = selection.keep(scene.batch, scene.trajectories, options)
        if self.config.value is not None:
            return replace(scene, batch=scene.batch.with_columns(kept_M=kept_M.astype(np.float64)))
        keep_M = np.flatnonzero(kept_M)
        nothing = Credit(np.zeros(len(scene.batch.turn_A)))
        batch, rows, _ = select(scene.batch, scene.rows, nothing, keep_M)
        return replace(scene, batch=batch, rows=rows, trajectories=[scene.trajectories[m] for m in keep_M.tolist()])

    async def actor(self, scene: Scene) -> Scene:
        """What the policy is trained on: the scene, or what a signal puts in its place."""
        for signal in self.signals.values():
            replaced = getattr(signal, "actor", None)
            if replaced is not None:
                batch, rows = await replaced(scene)
                return replace(scene, batch=self.consider(batch, rows), rows=rows, trajectories=())
        return scene

    def update(self, batch: Batch, rows: Sequence[Row], credit: Credit) -> dict[str, float]:
        """All epochs and optimiser batches of a step; metrics are means, "max" metrics maxima."""
        config = self.config
        if not len(batch.group_M):
            return {}
        if config.value is not None and self.step < config.value.warmup:
            credit = replace(credit, advantage_A=np.zeros_like(credit.advantage_A))
        rng = np.random.default_rng([config.run.seed, self.step, 1])
        seen: dict[str, list[float]] = {}
        epochs = (optimiser_batches(batch, config, rng) for _ in range(config.optim.epochs))
        for keep_M in chain.from_iterable(epochs):
            part = select(batch, rows, credit, keep_M)
            metrics = self.learner.update(*part, config.loss)
            if metrics.get("optim/skipped"):
                told = keep_skipped(self.folder, self.step + 1, *part, metrics, self.learner.not_finite)
                logging.getLogger(__name__).warning("%s", told)
            for name, value in metrics.items():
                seen.setdefault(name, []).append(value)
            if self.guards.after_batch(metrics, part[0]):
                break
        for _ in range(config.value.extra_epochs if config.value is not None else 0):
            for keep_M in optimiser_batches(batch, config, rng):
                self.learner.fit_value(*select(batch, rows, credit, keep_M))
        result = {name: max(v) if name.endswith("max") else sum(v) / len(v) for name, v in seen.items()}
        # Before the first step nothing has moved: what the learner says of sampled tokens must be what the engine said.
        result["policy/engine_gap"] = seen["policy/logprob_gap"][0]
        result |= {name: seen[name][0] for name in ("policy/prob_error", "policy/mismatch_kl") if name in seen}
        if config.loss.band is not None:
            self.learner.remember_entropy(result["policy/entropy_trajectory"])
        return result

    def relive(self, scene: Scene, credit: Credit) -> dict[str, float]:
        """Keep what went well, and learn from what was kept once there is enough of it."""
        options, buffer = self.config.replay, self.buffer
        if options is None or buffer is None or not scene.trajectories:
            return {}
        buffer.add(scene.batch, credit, scene.trajectories, self.step)
        metrics = {"replay/kept": float(len(buffer.kept)), "replay/median": buffer.median}
        drawn = buffer.draw(np.random.default_rng([self.config.run.seed, self.step, 3]), options)
        if not drawn:
            return metrics
        batch, rows, _ = collate([Group((trajectory,)) for trajectory in drawn])
        batch = self.learner.annotate(batch, rows).with_columns(baseline_M=np.full(len(drawn), buffer.median))
        again = recalibrated(batch)
        again = replace(again, weight_A=np.full(len(batch.turn_A), options.weight))
        told = self.learner.update(batch, rows, again, options.loss)
        return metrics | {"replay/drawn": float(len(drawn)), **{f"replay/{name}": x for name, x in told.items()}}

    def policy(self, *salt: int) -> TokenPolicy:
        """The policy being trained; `salt` decides its random streams."""
        template = ChatTemplate(self.tokenizer)
        return TokenPolicy(self.engine, template, sampling_of(self.config, template), salt)

    def save(self, log: MetricsLog) -> Path:
        """A checkpoint of everything that decides the rest of the run."""
        state = {
            "step": self.step,
            **self.learner.state_dict(),
            "curriculum": self.curriculum.state_dict(),
            "source": self.source.state_dict(),
            "selection": self.selection.state_dict() if self.selection is not None else None,
            "replay": self.buffer.state_dict() if self.buffer is not None else None,
            "signals": {name: signal.state_dict() for name, signal in self.signals.items()},
            "torch_rng": torch.get_rng_state(),
            "metrics_bytes": log.position,
        }
        folder = self.folder / "checkpoints" / f"step-{self.step:06d}"
        checkpoint.save(folder, self.learner.model, self.tokenizer, state, self.learner.weights())
        kept = checkpoint.prune(self.folder, self.config.run.keep_checkpoints)
        if isinstance(self.source, StreamedSource):
            self.source.forget(checkpoint.step_of(kept[0]) if kept else 0)
        return folder

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint's state; the model itself was loaded when the trainer was built."""
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


def shape(batch: Batch, config: Config) -> Batch:
    """The batch with the recipe's shapers applied to its rewards, one after the other."""
    for name, options in config.shaping.items():
        batch = replace(batch, reward_N=SHAPERS[name].function(batch, **options))
    return batch


def optimiser_batches(batch: Batch, config: Config, rng: np.random.Generator) -> list[np.ndarray]:
    """The trajectories of each optimiser batch of an epoch, at random; groups stay whole where the objective asks."""
    whole = OBJECTIVES[config.loss.objective].whole_groups
    units, unit_M = np.unique(batch.group_M, return_inverse=True) if whole else (batch.group_M, None)
    order = rng.permutation(len(units))
    parts = np.array_split(order, min(config.optim.minibatches, len(order)))
    return parts if unit_M is None else [np.flatnonzero(np.isin(unit_M, part)) for part in parts]


def assign(batch: Batch, config: Config) -> Credit:
    """The recipe's credit, normalised if it says so."""
    credit = assigner_of(config.credit.assigner).function(batch, **config.credit.options)
    if config.credit.normalise != "none":
        credit = normalise(credit, batch, population=config.credit.normalise)
    return credit


def check_context(stops: Sequence[str], where: str, config: Config) -> None:
    """Raise GuardTripped where most episodes ended because the next prompt did not fit rollout.max_length."""
    full = sum(stop == StopReason.CONTEXT_FULL for stop in stops)
    if full > len(stops) / 2:
        also = "" if config.model.path is not None else " and model.tiny.max_length"
        raise GuardTripped(
            f"{full} of {len(stops)} episodes of {where} ended because the next prompt did not fit the context: "
            f"rollout.max_length is {config.rollout.max_length}; raise rollout.max_length{also} in a new run"
        )


def sampling_of(config: Config, template: ChatTemplate) -> Sampling:
    return Sampling(config.rollout.temperature, config.rollout.max_new_tokens, template.stop_ids())


def success_rate(trajectories: list[Trajectory]) -> float:
    counted = [t for t in trajectories if not t.stop.is_failure]
    return sum(t.success for t in counted) / max(len(counted), 1)
