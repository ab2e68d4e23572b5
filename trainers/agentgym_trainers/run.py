"""A whole run: serve the environment, warm up, evaluate, train, evaluate again, report. What `agentgym train` does.

The folder is the run: a run that was killed goes on from its newest checkpoint and gives the same metrics.

    config.toml        the resolved configuration
    metrics.jsonl      one line a step: {"phase": "sft" | "rl" | "eval", "step", ...}
    trackers.json      the ids that trackers have for the run; tensorboard/, wandb/ what they keep here
    checkpoints/       step-000000 is where RL began; transformers loads each
    trajectories/      episodes with their credit, every few steps
    eval/before, after every attempt, and summary.json with both and their paired difference
    report.html        all of it to look at
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor

from agentgym.clients.client import Connection
from agentgym.errors import CheckpointError, ConfigError, UsageError
from agentgym.evaluation.evaluate import Report, compare, evaluate
from agentgym.evaluation.run_folder import lock
from agentgym.evaluation.suite import Suite, SuiteEnv
from agentgym.evaluation.summary import Comparison
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.runner import Limits, Runner
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import Config
from agentgym_trainers.engines.build import sampling_params
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.learner import sft
from agentgym_trainers.learner.build import placed, prepare
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.load import load_run
from agentgym_trainers.monitoring.guards import check_context
from agentgym_trainers.monitoring.metrics import MetricsLog, check_metrics, success_rate
from agentgym_trainers.monitoring.progress import Phases
from agentgym_trainers.monitoring.report.page import write_report
from agentgym_trainers.monitoring.tracking.trackers import STATE, Trackers, open_trackers
from agentgym_trainers.nn import checkpoint, tiny
from agentgym_trainers.preflight import check_room, check_start
from agentgym_trainers.recipe import to_toml
from agentgym_trainers.rollout.environment import open_env
from agentgym_trainers.rollout.policy import TokenPolicy
from agentgym_trainers.rollout.tokens import ChatTemplate, check_template, corpus, tokenize
from agentgym_trainers.train import Trainer

LOCK = ".lock"
"""File in a run's folder that the process which trains there keeps locked."""


@dataclass(frozen=True)
class RunResult:
    """Result of a run."""

    folder: Path
    before: Report | None
    after: Report | None
    comparison: Comparison | None
    seconds: float


async def run(config: Config, folder: Path, *, resume: bool = False, progress: Progress | None = None) -> RunResult:
    """Carry out `config` in `folder`. Raises ConfigError when the folder holds a run and `resume` is False."""
    started = perf_counter()
    check_folder(config, folder, resume)
    check_start(config)
    if config.run.threads is not None:
        torch.set_num_threads(config.run.threads)
    with (
        disk_full_as_checkpoint_error(folder),
        locked(folder),
        withdrawn_if_refused(folder),
        progress or Phases() as progress,
    ):
        check_folder(config, folder, resume)  # nobody else can write there from here on
        async with open_env(config, progress) as (env, server):
            write_config(config, folder)
            with open_trackers(config.tracking, folder, config.model_dump(mode="json")) as trackers:
                held_out = HeldOutEvaluation(config, folder, server, progress)
                start = await warm_start(config, folder, env, progress, trackers)
                trainer, log = await start_training(config, folder, env, start, trackers)
                try:
                    before = await held_out.evaluate(trainer, start, "before")
                    await reinforce(trainer, log, progress)
                    after = await held_out.evaluate(trainer, checkpoint.latest(folder) or start, "after")
                    comparison = held_out.conclude(log, before, after)
                finally:
                    await trainer.engine.aclose()
        if log.position:  # a run of no step at all, as for `sft=`, has nothing to show
            write_report(folder)
    return RunResult(folder, before, after, comparison, perf_counter() - started)


@contextmanager
def disk_full_as_checkpoint_error(folder: Path) -> Iterator[None]:
    """Raises CheckpointError where the disk had no room for what a run writes into its folder."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise CheckpointError(
            f"no space is left for {folder}; its checkpoints are whole: free some, and resume"
        ) from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the run's folder, and keep every other process out of it. Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("ab")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise UsageError(f"{folder} cannot be a run's folder ({error.strerror}); choose another with --out") from error
    with file:
        lock(file, f"another process trains in {folder}; wait for it, or choose another --out")
        yield


@contextmanager
def withdrawn_if_refused(folder: Path) -> Iterator[None]:
    """Leave no run behind where a new one is refused before its first checkpoint, so that it can be corrected."""
    new = not (folder / "config.toml").is_file()
    try:
        yield
    except UsageError:
        if new and checkpoint.latest(folder) is None:
            for name in ("config.toml", "metrics.jsonl", STATE, LOCK):
                (folder / name).unlink(missing_ok=True)
            for name in ("tensorboard", "wandb"):
                shutil.rmtree(folder / name, ignore_errors=True)
            if not any(folder.iterdir()):
                folder.rmdir()
        raise


def write_config(config: Config, folder: Path) -> None:
    """config.toml, whole or not at all: without it there is no resuming."""
    partial = folder / ".config.toml.partial"
    partial.write_text(to_toml(config), encoding="utf-8")
    os.replace(partial, folder / "config.toml")


def check_folder(config: Config, folder: Path, resume: bool) -> None:
    """Raises ConfigError where the folder holds a run that is not this one, or that was not to be resumed."""
    if (folder / "config.toml").is_file():
        if not resume:
            raise ConfigError(f"{folder} already holds a run; resume it (--resume {folder}), or choose another --out")
        if load_run(folder) != config:
            raise ConfigError(f"{folder} holds a run with another configuration; choose another --out, or delete it")


async def warm_start(
    config: Config, folder: Path, env: Connection, progress: Progress, trackers: Trackers | None = None
) -> Path:
    """checkpoints/step-000000: the given model, or a tiny one, after the supervised warm-up if there is one."""
    first = folder / "checkpoints" / f"step-{0:06d}"
    if first.is_dir():
        return first
    seed, options = config.run.seed, config.sft
    log = MetricsLog(folder, trackers=trackers)
    demonstrations = []
    if options is not None:
        bar = progress.add_task("demonstrations", total=None)
        limits, images = Limits(config.env.max_turns), "image" in env.spec.observations
        runner = Runner(_opener(env), config.prompt_format, limits, config.rollout.concurrency, keep_images=images)
        demonstrations = await sft.demonstrate(runner, env.spec, config.env.split, options, seed)
        progress.update(bar, total=len(demonstrations), completed=len(demonstrations))
    if config.model.path is not None:
        model, tokenizer = checkpoint.load_model(config.model.path)
    else:
        texts = corpus(env.spec, config.prompt_format, demonstrations)
        model, tokenizer = tiny.make(config.model.shape, texts, seed)
    template = ChatTemplate(tokenizer, config.model.template)
    await check_room(config, env, template)
    model = placed(config, model)
    for fork in check_template(template):
        progress.console.print(f"note: the chat template rewrites earlier turns, which costs extra rows: {fork}")
    weights = None
    if options is not None:
        weights = await imitate(config, env, model, tokenizer, demonstrations, log, progress)
    return checkpoint.save(first, model, tokenizer, {"step": 0, **log.state_dict()}, weights)


async def imitate(
    config: Config,
    env: Connection,
    model: Any,
    tokenizer: Any,
    demonstrations: list,
    log: MetricsLog,
    progress: Progress,
) -> Mapping[str, Tensor]:
    """Supervised warm-up until its steps or its target are reached; the weights it came to. Adapters are merged, so
    RL begins with others, at zero."""
    options = config.sft
    assert options is not None
    template = ChatTemplate(tokenizer, config.model.template)
    prepare(config, model)
    learner = Learner(model, config.optim.model_copy(update={"lr": options.lr, "warmup": 0}), dtype=config.model.dtype)
    tokenized = [tokenize(t, env.spec, config.prompt_format, template) for t in demonstrations]
    bar = progress.add_task("supervised warm-up", total=options.max_steps)
    for step, metrics in sft.imitate(learner, tokenized, options, config.run.seed):
        if options.stop_at_success is not None and step % options.check_every == 0:
            metrics["sft/success"] = await sampled_success(config, env, model, template)
        log.write("sft", step, metrics)
        success = metrics.get("sft/success")
        shown = "" if success is None else f", success {success:.0%}"
        progress.update(
            bar, advance=1, description=f"supervised warm-up: loss {metrics['loss/cross_entropy']:.3f}{shown}"
        )
        if success is not None and success >= (options.stop_at_success or 1):
            progress.update(bar, total=step)
            break
    return learner.weights()


async def sampled_success(config: Config, env: Connection, model: Any, template: ChatTemplate) -> float:
    """Success of one attempt at each of a batch of training tasks."""
    rollout, tasks = config.rollout, env.spec.splits[config.env.split]
    engine = InProcessEngine(
        model, max_sequences=rollout.concurrency, max_length=rollout.max_length, lockstep=rollout.lockstep
    )
    policy = TokenPolicy(engine, template, sampling_params(config, template), (config.run.seed, 0))
    runner = Runner(_opener(env), config.prompt_format, Limits(config.env.max_turns), rollout.concurrency)
    episodes = [EpisodeSpec(env.spec.id, config.env.split, i % tasks, i // tasks) for i in range(rollout.concurrency)]
    try:
        return success_rate(await runner.run(policy, episodes))
    finally:
        engine.shutdown()


async def start_training(
    config: Config, folder: Path, env: Connection, start: Path, trackers: Trackers | None = None
) -> tuple[Trainer, MetricsLog]:
    """The trainer, at the run's newest checkpoint; at `start`, which another run may have saved, where it has none."""
    newest, state = checkpoint.load_newest(folder, start)
    if newest.is_relative_to(folder):  # the start may be another run's, whose metrics stay there
        check_metrics(folder, state)
    base = newest if config.model.lora is None else start  # what adapters learned is in the state
    model, tokenizer = checkpoint.load_model(base)
    reference = model if base == start else placed(config, checkpoint.load_model(start)[0])
    model = placed(config, model)
    trainer = build(config, folder, env.spec, _opener(env), model, reference, tokenizer)
    if newest != start:
        trainer.load(state)
    try:
        await trainer.publish()
    except BaseException:
        await trainer.engine.aclose()
        raise
    return trainer, MetricsLog(folder, state["metrics_bytes"], trackers)


async def reinforce(trainer: Trainer, log: MetricsLog, progress: Progress) -> None:
    """All RL steps, with a bar."""
    bar = progress.add_task("reinforcement learning", total=trainer.config.run.steps, completed=trainer.step)

    def on_step(step: int, metrics: dict[str, float]) -> None:
        summary = (
            f"success {metrics['rollout/success']:.0%}, score {metrics['rollout/score']:.2f}, "
            f"{metrics['rollout/turns']:.1f} turns"
        )
        progress.update(bar, completed=step, description=f"reinforcement learning: {summary}")

    await trainer.run(log, on_step)


class HeldOutEvaluation:
    """Evaluation before and after, on the same held-out tasks and seeds."""

    def __init__(self, config: Config, folder: Path, server: str | None, progress: Progress) -> None:
        self.config, self.folder, self.server, self.progress = config, folder / "eval", server, progress

    async def evaluate(self, trainer: Trainer, model: Path, when: str) -> Report | None:
        options = self.config.eval
        out = self.folder / when
        if not options.tasks or (when == "before" and trainer.step > 0 and not out.is_dir()):
            return None
        bar = self.progress.add_task(f"evaluation {when}", total=None)
        report = await evaluate(
            self._suite(),
            trainer.policy(self.config.run.seed, 10**9),
            out,
            identity=f"{model.name} of {self.config.name}",
            concurrency=self.config.rollout.concurrency,
            prompt_format=self.config.prompt_format,
            limits=Limits(self.config.env.max_turns, self.config.env.episode_s),
            on_progress=lambda p: self.progress.update(bar, total=p.total, completed=p.done),
            server=self.server,
        )
        check_context([row.stop for row in report.rows], f"the evaluation {when} RL", self.config)
        return report

    def conclude(self, log: MetricsLog, before: Report | None, after: Report | None) -> Comparison | None:
        """Log both, write eval/summary.json, and pair them."""
        if before is None or after is None:
            return None
        comparison = compare(self.folder / "before", self.folder / "after")
        summary: dict[str, Any] = {}
        for when, step, report in (("before", 0, before), ("after", self.config.run.steps, after)):
            line = report.summary.overall
            if line.success is None:
                continue
            numbers = {"success": line.success.estimate, "low": line.success.low, "high": line.success.high}
            log.write("eval", step, {f"eval/{name}": value for name, value in numbers.items()})
            summary[when] = {
                **numbers,
                "tasks": line.tasks,
                "attempts": self.config.eval.attempts,
                "failed": sum(line.failed.values()),
            }
        gap = comparison.overall.difference
        if gap is not None:
            summary["difference"] = {"estimate": gap.estimate, "low": gap.low, "high": gap.high}
        (self.folder / "summary.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
        return comparison

    def _suite(self) -> Suite:
        options, env = self.config.eval, self.config.env
        return Suite(
            name=f"{env.name} {options.split}",
            attempts=options.attempts,
            env=(SuiteEnv(name=env.name, split=options.split, tasks=options.tasks),),
        )


def bars() -> Progress:
    """Progress as every command shows it."""
    return Phases()


def _opener(env: Connection) -> Any:
    async def open_session() -> Any:
        return env.session()

    return open_session
