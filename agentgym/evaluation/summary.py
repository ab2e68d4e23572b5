"""The numbers of an evaluation: rates of each environment and split, and the difference between two evaluations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from agentgym.evaluation.cost import Price
from agentgym.evaluation.run_folder import AttemptRecord, key_of
from agentgym.evaluation.stats import (
    Interval,
    cluster_bootstrap,
    cluster_wilson,
    mean_pass_at_k,
    mean_pass_hat_k,
    paired_bootstrap,
    percent,
    wilson,
)
from agentgym.evaluation.suite import METRIC_AT_K
from agentgym.rollouts.policy import Usage
from agentgym.rollouts.trajectory import StopReason

OVERALL = "overall"
Scored = Literal["success", "score"]


@dataclass(frozen=True)
class SummaryRow:
    """A line of the summary: one (environment, split), or all. Rates are None where nothing was scored."""

    env: str
    split: str
    tasks: int
    """Tasks with at least one scored attempt."""
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
    prompt_tokens: int | None = None
    """Tokens of all prompts, failed attempts included; None where one is not known."""
    completion_tokens: int | None = None
    """Tokens of all replies, likewise."""
    cost: float | None = None
    """Dollars for those tokens; None without a price."""
    seconds: float | None = field(default=None, compare=False)
    """Mean of an attempt: time that it waited for policy and environment."""

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
        """Return the failures as text: 3 of 200 (ENVIRONMENT_FAILED 3)."""
        return count_failures(self.failed, self.attempts)


@dataclass(frozen=True)
class Summary:
    envs: tuple[SummaryRow, ...]
    overall: SummaryRow


def summarize(rows: Iterable[AttemptRecord], metrics: Sequence[str] = (), price: Price | None = None) -> Summary:
    """A line for each (environment, split) and one over all, whatever the order of `rows`; pass@k for those in
    `metrics`, and costs where there is a price.

    Over all, every task weighs the same, whichever environment it is of; a score over several environments is not
    given.
    """
    ordered = sorted(rows, key=key_of)
    places: dict[tuple[str, str], list[AttemptRecord]] = defaultdict(list)
    for row in ordered:
        places[row.env, row.split].append(row)
    envs = tuple(_line(env, split, inside, metrics, price) for (env, split), inside in places.items())
    overall = _line(OVERALL, "", ordered, metrics, price)
    return Summary(envs, overall if one_scale(ordered) else replace(overall, score=None))


def one_scale(rows: Iterable[AttemptRecord]) -> bool:
    """Return whether scores may be averaged: they are of one environment."""
    return len({row.env for row in rows}) <= 1


def _line(
    env: str, split: str, rows: Sequence[AttemptRecord], metrics: Sequence[str], price: Price | None
) -> SummaryRow:
    scored = [row for row in rows if not row.failed]
    tokens = total_tokens(rows)
    turns = sum(row.turns for row in scored)
    return SummaryRow(
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
        truncated=sum(StopReason(row.stop).is_limit for row in scored) / len(scored) if scored else None,
        prompt_tokens=None if tokens is None else tokens.prompt,
        completion_tokens=None if tokens is None else tokens.completion,
        cost=None if tokens is None or price is None else price.of(tokens),
        seconds=sum(row.seconds for row in scored) / len(scored) if scored else None,
    )


def total_tokens(rows: Iterable[AttemptRecord]) -> Usage | None:
    """Tokens of attempts together; None where those of one are not known."""
    counts = [row.tokens for row in rows]
    known = [tokens for tokens in counts if tokens is not None]
    if len(known) < len(counts):
        return None
    return Usage(sum(tokens.prompt for tokens in known), sum(tokens.completion for tokens in known))


def interval(rows: Sequence[AttemptRecord], metric: Scored) -> Interval | None:
    """The mean over tasks of a metric, with a 95% interval over tasks; where there is one task only, over its seeds.

    Of a success, Wilson's: for one attempt at each task as it is, for several with an effective number of attempts
    (`cluster_wilson`). Of a score, a cluster bootstrap with seed 0.
    """
    scores = _by_task(rows, metric)
    if not scores:
        return None
    if metric == "success" and len(scores) == len(rows):
        return wilson(sum(bool(row.success) for row in rows), len(rows))
    clusters = _clusters(scores)
    return cluster_wilson(clusters, len(rows)) if metric == "success" else cluster_bootstrap(clusters)


TaskScores = dict[str, dict[int, list[float]]]
"""task -> seed -> the scored attempts."""


def _by_task(rows: Iterable[AttemptRecord], metric: Scored) -> TaskScores:
    scores: TaskScores = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if not row.failed:
            scores[f"{row.env}/{row.split}/{row.task}"][row.seed].append(float(getattr(row, metric)))
    return scores


def _clusters(scores: TaskScores) -> dict[str, list[float]]:
    """Return the clusters to resample: tasks with a mean for each seed; the seeds, where there is one task."""
    means = {task: {seed: sum(s) / len(s) for seed, s in seeds.items()} for task, seeds in scores.items()}
    if len(means) > 1:
        return {task: list(seeds.values()) for task, seeds in means.items()}
    return {f"{task} {seed}": [mean] for task, seeds in means.items() for seed, mean in seeds.items()}


def _at_k(scored: Sequence[AttemptRecord], metric: str) -> float | None:
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
    envs: tuple[Difference, ...]
    overall: Difference
    notes: tuple[str, ...] = ()
    """Differences between the runs other than the policy."""


def difference(
    env: str, split: str, a: Sequence[AttemptRecord], b: Sequence[AttemptRecord], metric: Scored
) -> Difference:
    """Return the difference of `b` less `a` in one environment and split."""
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
    """Return the failures as text: 3 of 200 (ENVIRONMENT_FAILED 3)."""
    kinds = ", ".join(f"{name} {count}" for name, count in failed.items())
    return f"{sum(failed.values())} of {scored + sum(failed.values())}" + (f" ({kinds})" if kinds else "")
