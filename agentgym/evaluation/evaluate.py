"""Evaluate a policy on a suite, and compare two evaluations.

    report = await evaluate(load_suite("smoke"), policy, Path("runs/eval"), identity="runs/a/checkpoint-40 sha256:...")
    print(report.table())

A run's folder: run.json (what was evaluated), attempts.jsonl (one line a finished attempt, in order of arrival),
summary.json, and trajectories.jsonl when they are kept. A run that was killed resumes in its folder: finished attempts
are not played again, and attempts that infrastructure failed are. Those count apart and are never zeros.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from rich.table import Table

from agentgym.clients.client import connect
from agentgym.errors import ConfigError, EnvironmentFailure, UsageError
from agentgym.evaluation.stats import (
    Interval,
    cluster_bootstrap,
    mean_pass_at_k,
    mean_pass_hat_k,
    paired_bootstrap,
    percent,
    wilson,
)
from agentgym.evaluation.suite import (
    METRIC_AT_K,
    Row,
    Suite,
    SuiteWorld,
    describe,
    key_of,
    open_folder,
    read_attempts,
    read_description,
    write_json,
)
from agentgym.evaluation.tables import summary_table
from agentgym.rollouts.policy import NotApplicable, Policy
from agentgym.rollouts.prompt_format import Harness
from agentgym.rollouts.runner import Limits, Runner
from agentgym.rollouts.trajectory import StopReason
from agentgym.session import Session

OVERALL = "overall"
Scored = Literal["success", "score"]


class Progress(NamedTuple):
    """Given after every attempt, and with `row` None at the start and when an environment is left out."""

    done: int
    total: int
    row: Row | None


@dataclass(frozen=True)
class Line:
    """A line of the summary: one (world, split), or all. Rates are None where nothing was scored."""

    env: str
    split: str
    tasks: int
    """With at least one scored attempt."""
    attempts: int
    """Scored: `failed` is not among them."""
    failed: dict[str, int]
    """Attempts that infrastructure failed, by StopReason."""
    success: Interval | None
    """Mean over tasks of a task's mean success, with a 95% interval (see `interval`)."""
    score: Interval | None
    """None over several environments: their scores have unlike scales."""
    at_k: dict[str, float | None]
    """"pass@k" and "pass^k", over the (task, seed) pairs with at least k scored attempts."""
    turns: float | None
    """Mean of an attempt."""
    invalid: float | None
    """Share of turns without a valid action."""
    truncated: float | None
    """Share of attempts cut by a limit."""

    def cell(self, metric: str) -> str:
        """A metric as the table shows it."""
        value = self.at_k[metric] if metric in self.at_k else getattr(self, metric)
        if value is None:
            return "–"
        if isinstance(value, Interval):
            shown = value.percent() if metric == "success" else f"{value.estimate:.3f}"
            return shown + ("*" if value.note else "")
        return f"{value:.1f}" if metric == "turns" else percent(value)

    @property
    def failures(self) -> str:
        """As in: 3 of 200 (ENVIRONMENT_FAILED 3)."""
        return count_failures(self.failed, self.attempts)


@dataclass(frozen=True)
class Summary:
    worlds: tuple[Line, ...]
    overall: Line


@dataclass(frozen=True)
class Report:
    """A finished evaluation."""

    suite: Suite
    identity: str
    rows: tuple[Row, ...]
    """Sorted by (env, split, task, seed, attempt)."""
    summary: Summary
    left_out: dict[str, str] = field(default_factory=dict)
    """ "ENV SPLIT" -> why the policy cannot act there. Nothing of it is in `rows`."""

    @property
    def common_error(self) -> str:
        """The most frequent reason of failed attempts, "" when none failed."""
        return Counter(row.error for row in self.rows if row.failed).most_common(1)[0][0] if self.failed else ""

    @property
    def failed(self) -> int:
        return sum(self.summary.overall.failed.values())

    def table(self) -> Table:
        notes = [f"left out: {place} ({why})" for place, why in self.left_out.items()]
        if self.left_out:
            played = len(self.suite.worlds) - len(self.left_out)
            notes.append(f"overall: {played} of {len(self.suite.worlds)} environments")
        return summary_table(self.summary, self.suite.metrics, f"{self.suite.name}: {self.identity}", notes)


async def evaluate(
    suite: Suite,
    policy: Policy,
    out: Path,
    *,
    identity: str,
    concurrency: int = 64,
    harness: Harness | None = None,
    limits: Limits | None = None,
    retries: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
    server: str | None = None,
    keep_trajectories: bool = False,
) -> Report:
    """Play every (world, split, task, seed, attempt) of `suite` that `out` does not hold yet.

    `identity` names the policy (a checkpoint's path and hash, or a URL and model). `concurrency` episodes are in
    flight, of one world after another. With `server`, a gateway's URL, worlds named by id are its /envs/ID. A world
    that cannot be reached fails its attempts; the others are played. One in which the policy cannot act at all is left
    out, and named in the report. Raises ConfigError when `out` holds another run.
    """
    harness, limits = harness or Harness(), limits or Limits()
    about = describe(suite, identity, harness, limits)
    tell = on_progress or (lambda progress: None)
    left_out: dict[str, str] = {}
    with open_folder(out, about, keep_trajectories) as folder:
        planned = [(world, suite.episodes(world)) for world in suite.worlds]
        total = sum(len(episodes) for _, episodes in planned)
        plan = [(world, [e for e in episodes if folder.wants(e)]) for world, episodes in planned]
        async with AsyncExitStack() as stack:
            plan = [(world, todo) for world, todo in plan if todo]
            opened = [await _open_world(stack, world, server) for world, _ in plan]
            done = total - sum(len(todo) for _, todo in plan)
            tell(Progress(done, total, None))
            for (world, todo), open_session in zip(plan, opened):
                limits_here, harness_here = world.limits_over(limits), world.harness_over(harness)
                runner = Runner(open_session, harness_here, limits_here, concurrency, retries)
                try:
                    async with aclosing(runner.stream(policy, todo)) as stream:
                        async for _, trajectory in stream:
                            done += 1
                            tell(Progress(done, total, folder.add(trajectory)))
                except NotApplicable as error:
                    left_out[f"{world.name} {world.split}"] = str(error)
                    total -= sum(folder.wants(episode) for episode in todo)
                    tell(Progress(done, total, None))
        rows = tuple(folder.rows[key] for key in sorted(folder.rows))
    report = Report(suite, identity, rows, summarise(rows, suite.metrics), left_out)
    write_json(out / "summary.json", {**about, **asdict(report.summary), "left_out": left_out})
    return report


async def _open_world(stack: AsyncExitStack, world: SuiteWorld, server: str | None) -> Callable[[], Awaitable[Session]]:
    """A way to sessions of `world`; one that fails every episode when the world cannot be reached."""
    name = world.name
    if server is not None and ":" not in name:
        name = f"{server.rstrip('/')}/envs/{name}"
        if world.kwargs:
            raise ConfigError(f"{world.name} has kwargs in the suite, but {server} has built its own worlds; drop one")
    try:
        connection = await stack.enter_async_context(connect(name, **world.kwargs))
        world.check(connection.spec)
    except EnvironmentFailure as error:
        kind, why = type(error), str(error)

        async def refuse() -> Session:
            raise kind(why)

        return refuse

    async def open_session() -> Session:
        return connection.session()

    return open_session


def summarise(rows: Iterable[Row], metrics: Sequence[str] = ()) -> Summary:
    """A line for each (world, split) and one over all, whatever the order of `rows`; pass@k for those in `metrics`.

    Over all, every task weighs the same, whichever world it is of; a score over several worlds is not given.
    """
    ordered = sorted(rows, key=key_of)
    places: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in ordered:
        places[row.env, row.split].append(row)
    worlds = tuple(_line(env, split, inside, metrics) for (env, split), inside in places.items())
    overall = _line(OVERALL, "", ordered, metrics)
    return Summary(worlds, overall if _one_scale(ordered) else replace(overall, score=None))


def _one_scale(rows: Iterable[Row]) -> bool:
    """Whether scores may be averaged: they are of one environment."""
    return len({row.env for row in rows}) <= 1


def _line(env: str, split: str, rows: Sequence[Row], metrics: Sequence[str]) -> Line:
    scored = [row for row in rows if not row.failed]
    turns = sum(row.turns for row in scored)
    return Line(
        env=env,
        split=split,
        tasks=len({(row.env, row.split, row.task) for row in scored}),
        attempts=len(scored),
        failed=dict(sorted(Counter(StopReason(row.stop).name for row in rows if row.failed).items())),
        success=interval(scored, "success"),
        score=interval(scored, "score"),
        at_k={metric: _at_k(scored, metric) for metric in metrics if METRIC_AT_K.fullmatch(metric)},
        turns=turns / len(scored) if scored else None,
        invalid=sum(row.invalid for row in scored) / turns if turns else None,
        truncated=sum(StopReason(row.stop).is_truncated for row in scored) / len(scored) if scored else None,
    )


def interval(rows: Sequence[Row], metric: Scored) -> Interval | None:
    """The mean over tasks of a metric, with a 95% interval over tasks (cluster bootstrap, seed 0).

    Wilson's, for the success of one attempt at each task. Where there is one task only, over its seeds.
    """
    scores = _by_task(rows, metric)
    if not scores:
        return None
    if metric == "success" and len(scores) == len(rows):
        return wilson(sum(bool(row.success) for row in rows), len(rows))
    return cluster_bootstrap(_clusters(scores))


TaskScores = dict[str, dict[int, list[float]]]
"""task -> seed -> the scored attempts."""


def _by_task(rows: Iterable[Row], metric: Scored) -> TaskScores:
    scores: TaskScores = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if not row.failed:
            scores[f"{row.env}/{row.split}/{row.task}"][row.seed].append(float(getattr(row, metric)))
    return scores


def _clusters(scores: TaskScores) -> dict[str, list[float]]:
    """What is resampled: tasks, each with a mean for each seed; the seeds, where there is but one task."""
    means = {task: {seed: sum(s) / len(s) for seed, s in seeds.items()} for task, seeds in scores.items()}
    if len(means) > 1:
        return {task: list(seeds.values()) for task, seeds in means.items()}
    return {f"{task} {seed}": [mean] for task, seeds in means.items() for seed, mean in seeds.items()}


def _at_k(scored: Sequence[Row], metric: str) -> float | None:
    """The mean over tasks of pass@k or pass^k, over the seeds with at least k scored attempts."""
    at = METRIC_AT_K.fullmatch(metric)
    assert at is not None
    k, mean = int(at[2]), mean_pass_at_k if at[1] == "@" else mean_pass_hat_k
    means = []
    for seeds in _by_task(scored, "success").values():
        counts = [(len(attempts), int(sum(attempts))) for attempts in seeds.values() if len(attempts) >= k]
        means += [mean(counts, k)] if counts else []
    return sum(means) / len(means) if means else None


@dataclass(frozen=True)
class Difference:
    """Run b less run a on the tasks and seeds that both have scored: positive when b is better."""

    env: str
    split: str
    a: float | None
    b: float | None
    difference: Interval | None
    """Paired bootstrap over tasks; None when they share none."""
    dropped: int
    """Tasks that only one of them has scored."""


@dataclass(frozen=True)
class Comparison:
    a: str
    b: str
    metric: Scored
    worlds: tuple[Difference, ...]
    overall: Difference
    notes: tuple[str, ...] = ()
    """What differs between the runs beside the policy."""


def compare(a_dir: Path, b_dir: Path, metric: Scored = "success") -> Comparison:
    """Run b against run a, on the same tasks and seeds.

    Raises CheckpointError where there is no evaluation, UsageError when the two share no scored task.
    """
    a, b = read_attempts(a_dir), read_attempts(b_dir)
    about_a, about_b = read_description(a_dir), read_description(b_dir)
    places = sorted({(row.env, row.split) for row in (*a, *b)})
    worlds = []
    for env, split in places:
        of_a, of_b = ([row for row in rows if (row.env, row.split) == (env, split)] for rows in (a, b))
        worlds.append(_difference(env, split, of_a, of_b, metric))
    differ = [key for key in ("suite", "harness", "max_turns") if about_a[key] != about_b[key]]
    notes = [f"the runs differ in their {key}" for key in differ]
    if all(line.difference is None for line in worlds):
        raise UsageError(
            f"{a_dir} and {b_dir} share no scored task, so there is nothing to compare; evaluate one suite"
        )
    overall = _difference(OVERALL, "", a, b, metric)
    if metric == "score" and not _one_scale((*a, *b)):
        overall = replace(overall, a=None, b=None, difference=None)
    return Comparison(about_a["policy"], about_b["policy"], metric, tuple(worlds), overall, tuple(notes))


def _difference(env: str, split: str, a: Sequence[Row], b: Sequence[Row], metric: Scored) -> Difference:
    scores_a, scores_b = _by_task(a, metric), _by_task(b, metric)
    shared = {task: scores_a[task].keys() & scores_b[task].keys() for task in scores_a.keys() & scores_b.keys()}
    shared = {task: seeds for task, seeds in shared.items() if seeds}
    dropped = len(scores_a.keys() | scores_b.keys()) - len(shared)
    if not shared:
        return Difference(env, split, None, None, None, dropped)
    cluster_a, cluster_b = (
        _clusters({task: {seed: scores[task][seed] for seed in sorted(shared[task])} for task in sorted(shared)})
        for scores in (scores_a, scores_b)
    )
    means = [sum(sum(s) / len(s) for s in cluster.values()) / len(cluster) for cluster in (cluster_a, cluster_b)]
    return Difference(env, split, means[0], means[1], paired_bootstrap(cluster_a, cluster_b), dropped)


def count_failures(failed: dict[str, int], scored: int) -> str:
    """As in: 3 of 200 (ENVIRONMENT_FAILED 3)."""
    kinds = ", ".join(f"{name} {count}" for name, count in failed.items())
    return f"{sum(failed.values())} of {scored + sum(failed.values())}" + (f" ({kinds})" if kinds else "")
