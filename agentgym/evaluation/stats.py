"""Evaluation statistics: what was measured, over which population, and how far the number can be trusted.

Every function states its population: what would be drawn afresh if the evaluation were repeated. Attempts at one task
are not independent, so intervals over many tasks resample tasks (`cluster_bootstrap`, `paired_bootstrap`); intervals
over training runs keep the tasks fixed and resample runs within each task (`stratified_bootstrap`,
`probability_of_improvement`). Bootstraps are percentile bootstraps, depend on `seed` alone (an int, or a Generator to
draw from), and do not depend on the order in which tasks, runs or attempts are given.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray | Sequence[Any]
ByTask: TypeAlias = Mapping[Any, Sequence[float]]
Seed: TypeAlias = int | np.random.Generator

TASK_REPLICATIONS = 10_000
RUN_REPLICATIONS = 50_000  # rliable's default for aggregates
_CHUNK = 1 << 22  # numbers held at once while bootstrapping
_PRIOR = 0.25  # tasks at 0 and at 1 that are added for a variance


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval.

    `n` counts the `unit`s that are drawn at random ("tasks", "runs" or "attempts"); `dropped` the tasks left out
    because only one side of a paired comparison has them; `note` says, when it is not empty, why the interval cannot
    be taken at face value.
    """

    estimate: float
    low: float
    high: float
    n: int
    unit: str = "tasks"
    dropped: int = 0
    note: str = ""

    def percent(self, digits: int = 1) -> str:
        """Return the interval in percent: "61.2 [55.0, 67.1]"."""
        estimate, low, high = (percent(x, digits) for x in (self.estimate, self.low, self.high))
        return f"{estimate} [{low}, {high}]"

    def __str__(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"


def percent(share: float, digits: int = 1) -> str:
    """A share in percent, halves rounded away from zero as the report's page does: 0.9625 is "96.3"."""
    return str(Decimal(100 * share).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 - C(n-c, k) / C(n, k): the chance that at least one of k attempts succeeds.

    Unbiased for 1 - (1-p)^k (Chen et al. 2021, arXiv 2107.03374, eq. 1). Population: attempts at one task, of which
    n were made and c succeeded. Attempts excluded for infrastructure reasons belong in neither number.
    """
    n, c, k = _counts(n, c, k)
    total = math.comb(n, k)
    return (total - math.comb(n - c, k)) / total


def pass_hat_k(n: int, c: int, k: int) -> float:
    """C(c, k) / C(n, k): the chance that all of k attempts succeed, pass^k.

    Unbiased for p^k (Yao et al. 2024, tau-bench, arXiv 2406.12045). Population: as for `pass_at_k`.
    """
    n, c, k = _counts(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def mean_pass_at_k(counts: Iterable[tuple[int, int]], k: int) -> float:
    """The mean over tasks of pass@k, from each task's (n, c).

    Averaged after the per-task estimate, since pass@k of an average c is biased. Population: tasks, and attempts at
    each. For an interval give the per-task estimates to `cluster_bootstrap`, one score for each task.
    """
    return _mean_over_tasks(pass_at_k, counts, k, "pass@")


def mean_pass_hat_k(counts: Iterable[tuple[int, int]], k: int) -> float:
    """The mean over tasks of pass^k, from each task's (n, c); otherwise as `mean_pass_at_k`."""
    return _mean_over_tasks(pass_hat_k, counts, k, "pass^")


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """The Wilson score interval of a proportion (Wilson 1927):

        (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n),  p = successes / n.

    Population: n independent attempts. Right for one attempt at each task; several attempts at a task are not
    independent, and want `cluster_bootstrap`.
    """
    successes, n = operator.index(successes), operator.index(n)
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"need 0 <= successes <= n and n >= 1, got successes={successes}, n={n}")
    return Interval(successes / n, *_wilson(successes / n, n, confidence), n, "attempts")


def cluster_wilson(scores_by_task: ByTask, attempts: int, *, confidence: float = 0.95) -> Interval:
    """The mean over tasks of each task's success rate, with Wilson's interval for an effective number of attempts.

    With m tasks of mean p and v the variance of that mean, n = p(1-p) / v, at most `attempts` and m where all tasks are
    0 or all 1; z is Student's t with m - 1 degrees of freedom. For v and its p a quarter of a task that is 0 and of one
    that is 1 are added: near 0 and 1 few tasks differ by chance alone. It has width where all tasks agree, and covers
    in small samples, where resampling tasks does not. Population: tasks, with the attempts that come with each
    (effective sample size after Korn & Graubard 1998, in Wilson's interval as in Franco et al. 2019).
    """
    means = np.sort([_task_mean(task, scores) for task, scores in scores_by_task.items()])
    if len(means) == 0 or attempts < len(means):
        raise ValueError(f"need a task, and at least an attempt at each; got {attempts} at {len(means)}")
    p, tasks = float(means.mean()), len(means)
    if not 0 <= means[0] <= means[-1] <= 1:
        raise ValueError("success rates lie between 0 and 1")
    if tasks == 1 or (means[0] == means[-1] and p in (0.0, 1.0)):
        low, high = _wilson(p, tasks, confidence)
    else:
        q = (means.sum() + _PRIOR) / (tasks + 2 * _PRIOR)
        squares = ((means - q) ** 2).sum() + _PRIOR * (q**2 + (1 - q) ** 2)
        variance = squares / (tasks - 1 + 2 * _PRIOR) / tasks
        n = float(np.clip(q * (1 - q) / variance, 1, attempts))
        low, high = _wilson(p, n, confidence, _student(_tail(confidence), tasks - 1))
    return Interval(p, low, high, tasks, "tasks", note=_note(tasks, "task"))


def _student(tail: float, degrees: int) -> float:
    """The value that Student's t exceeds with probability `tail`: bisection of its distribution (Abramowitz & Stegun
    26.7.3 and 26.7.4) in the angle atan(t / sqrt(degrees))."""
    low, high = 0.0, math.pi / 2
    for _ in range(50):
        angle = (low + high) / 2
        term, total = (math.cos(angle), 0.0) if degrees % 2 else (1.0, 0.0)
        for k in range(degrees % 2, degrees - 1, 2):
            total += term
            term *= (k + 1) / (k + 2) * math.cos(angle) ** 2
        within = math.sin(angle) * total
        within = 2 / math.pi * (angle + within) if degrees % 2 else within
        low, high = (angle, high) if within < 1 - 2 * tail else (low, angle)
    return math.sqrt(degrees) * math.tan(low)


def _wilson(p: float, n: float, confidence: float, quantile: float | None = None) -> tuple[float, float]:
    """Bounds for a rate p of n; `quantile` stands for the normal distribution's."""
    z = -NormalDist().inv_cdf(_tail(confidence)) if quantile is None else quantile
    scale = 1 + z * z / n
    center = (p + z * z / (2 * n)) / scale
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / scale
    return 0.0 if p == 0 else center - half, 1.0 if p == 1 else center + half  # exactly, where rounding would not be


def cluster_bootstrap(
    scores_by_task: ByTask, *, confidence: float = 0.95, replications: int = TASK_REPLICATIONS, seed: Seed = 0
) -> Interval:
    """The mean over tasks of each task's mean score, resampling whole tasks with replacement.

    Each task weighs the same however many attempts it had. Where every task has 0, or every task 1, resampling shows
    no spread: the interval is Wilson's for that many tasks. Population: tasks, with the attempts that come with each
    (Cameron, Gelbach & Miller 2008; Miller 2024, arXiv 2411.00640, on clustered evaluation errors).
    """
    means = [_task_mean(task, scores) for task, scores in scores_by_task.items()]
    found = _resample_tasks(means, confidence, replications, seed, dropped=0)
    if not set(means) <= {0.0} and not set(means) <= {1.0}:
        return found
    low, high = _wilson(found.estimate, found.n, confidence)
    return replace(found, low=low, high=high)


def paired_bootstrap(
    a_by_task: ByTask,
    b_by_task: ByTask,
    *,
    confidence: float = 0.95,
    replications: int = TASK_REPLICATIONS,
    seed: Seed = 0,
) -> Interval:
    """The mean over shared tasks of mean(b) - mean(a), resampling tasks with replacement: positive when b is better.

    Population: the tasks both have; `dropped` counts those only one has. What makes a task hard cancels in its
    difference, so this is sharper than comparing two intervals (Miller 2024, arXiv 2411.00640).
    """
    shared = a_by_task.keys() & b_by_task.keys()
    if not shared:
        raise ValueError("the two share no task, so there is nothing to pair")
    differences = [_task_mean(task, b_by_task[task]) - _task_mean(task, a_by_task[task]) for task in shared]
    dropped = len(a_by_task.keys() ^ b_by_task.keys())
    return _resample_tasks(differences, confidence, replications, seed, dropped)


def iqm(scores: Array) -> float:
    """The interquartile mean: the mean of what is left once the floor(n/4) lowest and highest scores are dropped.

    Population: all run × task scores pooled (Agarwal et al. 2021, arXiv 2108.13264; `scipy.stats.trim_mean` at 0.25).
    """
    return float(iqm_rows(_finite(scores).reshape(1, -1))[0])


def iqm_rows(rows: np.ndarray) -> np.ndarray:
    """`iqm` of each row of an array [rows, scores]."""
    n = rows.shape[-1]
    return np.sort(rows, axis=-1)[..., n // 4 : n - n // 4].mean(axis=-1)


def optimality_gap(scores: Array, gamma: float = 1.0) -> float:
    """gamma - mean(min(score, gamma)): by how much scores fall short of gamma, with no credit for passing it.

    Population: all run × task scores pooled (Agarwal et al. 2021, arXiv 2108.13264).
    """
    return float(gamma - np.minimum(_finite(scores), gamma).mean())


def performance_profile(scores: Array, thresholds: Array) -> np.ndarray:
    """F(τ), the fraction of run × task scores above τ, at each threshold (Agarwal et al. 2021, arXiv 2108.13264).

    Population: all run × task scores pooled.
    """
    ranked = np.sort(_finite(scores), axis=None)
    return 1 - np.searchsorted(ranked, np.asarray(thresholds, float), side="right") / ranked.size


def first_reaching(curve: Array, target: float, budget: float) -> tuple[float, bool]:
    """(episodes until the target is first met, whether it is) of a learning curve [points, 2]: episodes, score.

    Linear between points; 1 where the first point meets it, and the budget where none does, or only past it.
    """
    points = _finite(curve)
    if points[0, 1] >= target:
        return 1.0, True
    for (before, low), (after, high) in pairwise(points.tolist()):
        if high >= target:
            return min(before + (after - before) * (target - low) / (high - low), budget), True
    return float(budget), False


def stratified_bootstrap(
    scores: Array,
    statistic: Callable[[np.ndarray], np.ndarray] = iqm_rows,
    *,
    confidence: float = 0.95,
    replications: int = RUN_REPLICATIONS,
    seed: Seed = 0,
) -> Interval:
    """A statistic (by default the IQM) of scores[run, task], resampling runs with replacement within each task.

    `statistic` takes [rows, runs × tasks] to [rows], as `iqm_rows` does. Population: training runs on these very
    tasks; it says nothing of other tasks (Agarwal et al. 2021, arXiv 2108.13264; rliable's StratifiedBootstrap).
    """
    (table,) = _tables(scores)
    runs, tasks = table.shape
    rng = np.random.default_rng(seed)

    def draw(count: int) -> np.ndarray:
        chosen = rng.integers(runs, size=(count, runs, tasks))
        return statistic(table[chosen, np.arange(tasks)].reshape(count, -1))

    estimate = float(statistic(table.reshape(1, -1))[0])
    low, high = _percentiles(draw, table.size, confidence, replications)
    return Interval(estimate, low, high, runs, "runs", note=_note(runs, "run"))


def probability_of_improvement(
    x: Array, y: Array, *, confidence: float = 0.95, replications: int = RUN_REPLICATIONS, seed: Seed = 0
) -> Interval:
    """P(X > Y) on a task drawn from these: the mean over tasks of U / (n m), ties counting one half.

    U is the Mann-Whitney statistic of x[:, task] over y[:, task], with n and m runs. Population: runs of either side
    on these very tasks, each side resampled on its own within each task (Agarwal et al. 2021, arXiv 2108.13264).
    `n` is the smaller number of runs.
    """
    x, y = _tables(x, y)
    rng = np.random.default_rng(seed)
    wins = (np.sign(x.T[:, :, None] - y.T[:, None, :]) + 1) / 2  # [task, run of x, run of y]

    def weights(runs: int, count: int) -> np.ndarray:  # the share of draws each run got, [task, count, run]
        return rng.multinomial(runs, np.full(runs, 1 / runs), size=(len(wins), count)) / runs

    def draw(count: int) -> np.ndarray:
        return ((weights(len(x), count) @ wins) * weights(len(y), count)).sum(axis=2).mean(axis=0)

    low, high = _percentiles(draw, x.size + y.size, confidence, replications)
    runs = min(len(x), len(y))
    return Interval(float(wins.mean()), low, high, runs, "runs", note=_note(runs, "run"))


def _counts(n: int, c: int, k: int) -> tuple[int, int, int]:
    n, c, k = operator.index(n), operator.index(c), operator.index(k)
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"k={k} needs k >= 1, n >= k attempts at the task and 0 <= c <= n; got n={n}, c={c}")
    return n, c, k


def _mean_over_tasks(estimator: Callable[..., float], counts: Iterable[tuple[int, int]], k: int, name: str) -> float:
    counts = list(counts)
    if not counts:
        raise ValueError("no tasks")
    short = [i for i, (n, _) in enumerate(counts) if n < k]
    if short:
        raise ValueError(
            f"{name}{k} needs at least {k} attempts at every task; {len(short)} of {len(counts)} have fewer "
            f"(the first: number {short[0]}, with n={counts[short[0]][0]})"
        )
    return math.fsum(estimator(n, c, k) for n, c in counts) / len(counts)


def _task_mean(task: Any, scores: Sequence[float]) -> float:
    if len(scores) == 0 or not np.isfinite(scores).all():
        raise ValueError(f"task {task!r} needs at least one score, and finite ones; got {scores!r}")
    return math.fsum(scores) / len(scores)


def _resample_tasks(values: list[float], confidence: float, replications: int, seed: Seed, dropped: int) -> Interval:
    if not values:
        raise ValueError("no tasks")
    ranked = np.sort(values)
    rng = np.random.default_rng(seed)

    def draw(count: int) -> np.ndarray:
        return ranked[rng.integers(ranked.size, size=(count, ranked.size))].mean(axis=1)

    low, high = _percentiles(draw, ranked.size, confidence, replications)
    return Interval(float(ranked.mean()), low, high, ranked.size, "tasks", dropped, _note(ranked.size, "task"))


def _percentiles(draw: Callable, size: int, confidence: float, replications: int) -> tuple[float, float]:
    """The central `confidence` of replications; `draw(count)` makes `count`, each from about `size` numbers."""
    tail = _tail(confidence)
    if replications < 1:
        raise ValueError(f"need at least one replication, got {replications}")
    step = max(1, _CHUNK // size)
    values = np.concatenate([draw(min(step, replications - done)) for done in range(0, replications, step)])
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def _tail(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    return (1 - confidence) / 2


def _note(count: int, unit: str) -> str:
    return f"resampled from {count} {unit}{'s' * (count != 1)}: too few for an interval (at least 3)" * (count < 3)


def _finite(scores: Array) -> np.ndarray:
    scores = np.asarray(scores, float)
    if scores.size == 0 or not np.isfinite(scores).all():
        raise ValueError("scores must be finite numbers, and at least one")
    return scores


def _tables(*scores: Array) -> list[np.ndarray]:
    """Runs sorted within each task, and tasks by their runs: a seed's draws then fall alike whatever the order."""
    tables = [_finite(table) for table in scores]
    shapes = [table.shape for table in tables]
    if any(len(shape) != 2 or shape[1] != shapes[0][1] for shape in shapes):
        raise ValueError(f"scores must be [runs, tasks], on the same tasks; got {' and '.join(map(str, shapes))}")
    ranked = [np.sort(table, axis=0) for table in tables]
    order = np.lexsort(np.concatenate(ranked))
    return [table[:, order] for table in ranked]
