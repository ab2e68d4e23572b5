"""The bench, from an environment and a policy to a table: collect, branch, train what must be learned, assign, measure.

episodes to measure on      groups × group_size of a fixed policy
the truth                   `continuations` from every state, whose step is taken again where the environment has chance
a second, smaller set       what mc_branch and "measured V" read, so that no assigner has the truth's own noise
episodes to learn from      of other tasks, for critics and signals
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from rich.progress import Progress

from agentgym.errors import AgentGymError, ConfigError, PolicyFailure
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.trajectory import Group, Trajectory
from agentgym_credit.batch import Credit
from agentgym_trainers import run
from agentgym_trainers.config.sections import Config, CreditOptions
from agentgym_trainers.credit_bench.columns import Columns
from agentgym_trainers.credit_bench.contestants import Contestant, contestants, unfit
from agentgym_trainers.credit_bench.gradient import token_scores
from agentgym_trainers.credit_bench.prompted import ASSIGNER, COLUMN, ROWS, prompted_judge_at, turn_scores
from agentgym_trainers.credit_bench.scores import (
    WITHIN,
    Figure,
    Truth,
    credit_of_turns,
    figure,
    gradient_figures,
    resamples,
    turn_figures,
    unit_gradients,
)
from agentgym_trainers.data.sequences import collate
from agentgym_trainers.monitoring.metrics import success_rate
from agentgym_trainers.rollout.environment import open_env
from agentgym_trainers.rollout.monte_carlo import BranchedValues, branch, require_snapshots
from agentgym_trainers.rollout.player import PolicyPlayer
from agentgym_trainers.signals.base import SignalContext, SignalDependencies
from agentgym_trainers.train import Trainer


@dataclass(frozen=True)
class BenchOptions:
    """Sizes of a run of the bench."""

    groups: int = 8
    """Tasks to measure on: intervals are over these."""
    group_size: int = 8
    continuations: int = 20
    """Continuations from every state, for the measured advantages."""
    second: int = 8
    """Continuations from every state, for assigners that read measured values."""
    learn_groups: int = 20
    """Tasks that critics and signals learn from, `group_size` attempts at each."""
    passes: int = 8
    """Passes over those episodes."""
    width: int = 1024
    """Width of the sketch of a token's gradient; 0 leaves gradients out."""
    draws: int = 1000
    """Bootstrap resamples."""
    seed: int = 0
    only: tuple[str, ...] = ()
    """Assigners and recipes; none is all of them."""
    judge_url: str = ""
    """URL of a prompted judge, with its version; "" leaves its rows out."""
    judge_model: str = ""
    judge_votes: int = 1


@dataclass(frozen=True)
class Scored:
    """One line of the table."""

    contestant: Contestant
    figures: dict[str, Figure]
    credit_N: np.ndarray


@dataclass
class Result:
    """Result of a run of the bench."""

    env: str
    policy: str
    options: BenchOptions
    trajectories: list[Trajectory]
    group_N: np.ndarray
    traj_N: np.ndarray
    truth: Truth
    branched: BranchedValues
    """The truth as it was found."""
    scored: list[Scored] = field(default_factory=list)
    """The best first."""
    refused: dict[str, str] = field(default_factory=dict)
    """Contestants that were not measured, and the reasons."""
    signals: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    processor: dict[str, float] = field(default_factory=dict)
    """Seconds of processor time, of the same parts."""

    @property
    def irrelevant(self) -> float:
        """Share of turns whose true advantage is within its noise of 0."""
        return float(self.truth.irrelevant_N.sum() / max(self.truth.known_N.sum(), 1))

    @property
    def reliability(self) -> float:
        """Share of the truth's variance that is no noise."""
        known = self.truth.known_N
        spread = float(np.var(self.truth.advantage_N[known]))
        return 1 - float((self.truth.error_N[known] ** 2).mean()) / spread if spread > 0 else float("nan")


async def bench(config: Config, folder: Path, options: BenchOptions, progress: Progress) -> Result:
    """Measure every assigner on `config`'s environment and policy, with its warm-up in `folder`. Raises ConfigError
    where the environment cannot be branched."""
    entered = contestants(options.only)
    async with open_env(config, progress) as (env, _):
        require_snapshots(env.spec)
        folder.mkdir(parents=True, exist_ok=True)
        clock = Clock()
        start = await run.warm_start(config, folder, env, progress)
        trainer, log = await run.start_training(config, folder, env, start)
        clock.lap("policy")
        try:
            return await _measure(trainer, entered, options, progress, clock)
        finally:
            log.close()
            await trainer.engine.aclose()


@dataclass
class Clock:
    """Time of every part of a run."""

    seconds: dict[str, float] = field(default_factory=dict)
    processor: dict[str, float] = field(default_factory=dict)
    """Processor seconds, of all threads of this process."""
    _since: tuple[float, float] = field(default_factory=lambda: (perf_counter(), process_time()))

    def lap(self, what: str) -> None:
        now = perf_counter(), process_time()
        self.seconds[what], self.processor[what] = now[0] - self._since[0], now[1] - self._since[1]
        self._since = now


async def _measure(
    trainer: Trainer,
    entered: Sequence[Contestant],
    options: BenchOptions,
    progress: Progress,
    clock: Clock,
) -> Result:
    context = await play(trainer, options.groups, options.group_size, options.seed, salt=0)
    truth = await _branch(
        trainer, context, options.continuations, options.seed, progress, "true advantages", actions=True
    )
    clock.lap("truth")
    if not (np.abs(np.nan_to_num(truth.advantage_N)) > WITHIN * np.nan_to_num(truth.advantage_se_N)).any():
        won = success_rate(list(context.trajectories))
        raise ConfigError(
            f"no turn of these {len(truth.value_N)} made a difference that {options.continuations} continuations could "
            f"see ({won:.0%} of the episodes were won), so there is nothing to compare with: take a policy that wins "
            "sometimes (--policy, --recipe, or a longer warm-up)"
        )
    needs_second = any(c.measured or any(n.startswith("mc_") for n in c.needs) for c in entered)
    second = (
        await _branch(trainer, context, options.second, options.seed + 1, progress, "measured values", actions=False)
        if needs_second
        else truth
    )
    clock.lap("measured values")
    policy, batch = str(trainer.config.model.path or "after the warm-up"), context.batch
    result = Result(
        trainer.spec.id, policy, options, list(context.trajectories), batch.group_M[batch.traj_N], batch.traj_N,
        Truth(truth.advantage_N, truth.advantage_se_N), truth,
    )  # fmt: skip
    columns = await _columns(trainer, options, progress)
    context = with_policy(trainer, context)
    weights_BU = resamples(int(result.group_N.max()) + 1, options.draws, np.random.default_rng([options.seed, 7]))
    given: list[tuple[Contestant, Any]] = []
    for contestant in entered:
        try:
            given.append((contestant, await _credit(contestant, columns, context, second)))
        except AgentGymError as error:
            result.refused[contestant.name] = str(error)
        except Exception as error:
            if ":" not in contestant.assigner:
                raise
            # one's own may raise anything, and the other rows are worth more than its traceback
            result.refused[contestant.name] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    result.signals = columns.metrics
    given += await _judge_rows(trainer, options, context, result, progress)
    clock.lap("signals")
    sketch_AK = _sketch(trainer, context, options, progress)
    clock.lap("gradients")
    for contestant, credit in given:
        figures = _figures(context, credit, result, sketch_AK, weights_BU)
        result.scored.append(Scored(contestant, figures, credit_of_turns(context.batch, credit)))
    result.scored.sort(key=lambda s: -np.nan_to_num(s.figures["pearson"].value, nan=-2.0))
    clock.lap("figures")
    result.seconds, result.processor = clock.seconds, clock.processor
    return result


async def _credit(contestant: Contestant, columns: Columns, context: SignalContext, second: BranchedValues) -> Credit:
    """A contestant's credit of the measured turns. Raises ConfigError with the reason where it cannot be measured."""
    if reason := unfit(contestant, context.batch):
        raise ConfigError(reason)
    credit = contestant.credit(await columns.of(contestant, context, second))
    if wrong := int((~np.isfinite(credit.advantage_A)).sum()):
        raise ConfigError(f"it gives {wrong} of {len(credit.advantage_A)} tokens a credit that is NaN or infinite")
    if not np.any(np.abs(credit.advantage_A) > 1e-12):
        raise ConfigError("it gives no turn of these any credit")
    return credit


async def play(trainer: Trainer, groups: int, size: int, seed: int, salt: int) -> SignalContext:
    """A context of `groups` tasks that no other call proposes, so that what is learned from is not what is measured."""
    env, split = trainer.spec.id, trainer.config.env.split
    tasks = trainer.curriculum.propose(groups)
    episodes = [EpisodeSpec(env, split, task, env_seed, k) for task, env_seed in tasks for k in range(size)]
    played = await trainer.runner.run(trainer.policy(seed, 11, salt), episodes)
    batch, rows, trajectories = collate([Group(tuple(played[i : i + size])) for i in range(0, len(played), size)])
    if not trajectories:
        raise PolicyFailure(f"every episode failed: {played[0].error}")
    full = replace(batch, group_M=np.unique(batch.group_M, return_inverse=True)[1])  # without groups that failed
    return SignalContext(full, rows, trajectories, salt, np.random.default_rng([seed, 13, salt]))


def with_policy(trainer: Trainer, context: SignalContext) -> SignalContext:
    """The context with the policy's log-probabilities; the policy is its own reference, for it has not moved."""
    batch = trainer.learner.annotate(context.batch, context.rows, prox=True)
    return replace(context, batch=batch.with_columns(**{"ref_logprob_A": batch.x["prox_logprob_A"]} | batch.x))


async def _branch(
    trainer: Trainer,
    context: SignalContext,
    continuations: int,
    seed: int,
    progress: Progress,
    what: str,
    *,
    actions: bool,
) -> BranchedValues:
    bar = progress.add_task(f"{what}: {continuations} continuations of every state", total=len(context.trajectories))
    return await branch(
        trainer.runner, trainer.policy(seed, 17), context.trajectories, continuations=continuations, seed=seed,
        action_values=actions, on_progress=lambda done, total: progress.update(bar, completed=done, total=total),
    )  # fmt: skip


async def _columns(trainer: Trainer, options: BenchOptions, progress: Progress) -> Columns:
    """Columns of signals, trained on episodes of their own."""
    contexts = []
    bar = progress.add_task("episodes to learn from", total=options.learn_groups)
    for number in range(0, options.learn_groups, 2):
        many = min(2, options.learn_groups - number)
        played = await play(trainer, many, options.group_size, options.seed, salt=1 + number)
        contexts.append(with_policy(trainer, played))
        progress.update(bar, completed=number + many)
    policy = trainer.policy(options.seed, 19)
    parts = SignalDependencies(
        model=trainer.learner.model, reference=trainer.learner.model, template=policy.template,
        sampling=policy.sampling, seed=options.seed,
        tokens_per_micro_batch=trainer.config.optim.tokens_per_micro_batch,
        player=PolicyPlayer(trainer.engine, policy.template, policy.sampling, trainer.runner), spec=trainer.spec,
        folder=trainer.folder,
    )  # fmt: skip
    bar = progress.add_task("training critics and signals", total=None)
    steps = iter(range(10**9))
    return Columns(
        trainer, parts, contexts, options.passes,
        lambda what: progress.update(bar, description=what, completed=next(steps)),
    )  # fmt: skip


async def _judge_rows(
    trainer: Trainer, options: BenchOptions, context: SignalContext, result: Result, progress: Progress
) -> list[tuple[Contestant, Any]]:
    """Rows of a prompted judge with their credit; those that cannot be measured are refused in the result."""
    found: list[tuple[Contestant, Any]] = []
    if not options.judge_url:
        reason = "it asks a language model, and none is configured: give --judge URL and --judge-model NAME"
        result.refused |= {} if options.only else dict.fromkeys(ROWS, reason)
        return found
    for row in progress.track(ROWS, description="asking the judge"):
        contestant = Contestant(row, CreditOptions(assigner=ASSIGNER))
        try:
            judge = prompted_judge_at(
                options.judge_url, options.judge_model, options.judge_votes, trainer.folder / "judge"
            )
            score_N = await turn_scores(judge, row, context.trajectories, trainer.spec.instructions)
        except AgentGymError as error:
            result.refused[row] = str(error)
            continue
        result.signals[row] = judge.metrics
        if score_N.any():
            found.append((contestant, contestant.credit(context.batch.with_columns(**{COLUMN: score_N}))))
        else:
            unread = f"{judge.metrics['unread']:.0f} of its answers could not be read"
            result.refused[row] = f"it gives no turn of these any credit; {unread}"
    return found


def _sketch(trainer: Trainer, context: SignalContext, options: BenchOptions, progress: Progress) -> np.ndarray | None:
    if not options.width:
        return None
    bar = progress.add_task("gradients of every token", total=len(context.rows))
    return token_scores(
        trainer.learner.model, context.rows, len(context.batch.turn_A), temperature=trainer.config.rollout.temperature,
        width=options.width, seed=options.seed, on_row=lambda: progress.advance(bar),
    )  # fmt: skip


def _figures(
    context: SignalContext, credit: Any, result: Result, sketch_AK: np.ndarray | None, weights_BU: np.ndarray
) -> dict[str, Figure]:
    """All figures of one contestant."""
    batch, truth = context.batch, result.truth
    figures = turn_figures(credit_of_turns(batch, credit), truth, result.group_N, weights_BU)
    if sketch_AK is not None:
        known_A = truth.known_N[batch.turn_A]
        exact_A = np.where(known_A, np.nan_to_num(truth.advantage_N)[batch.turn_A], 0.0)
        mine, exact = (
            unit_gradients(batch, a, sketch_AK, batch.group_M)
            for a in (np.where(known_A, credit.advantage_A, 0.0), exact_A)
        )
        figures |= gradient_figures(mine, exact, weights_BU, size=len(batch.group_M) / weights_BU.shape[1])
    return {name: figure(values) for name, values in figures.items()}
