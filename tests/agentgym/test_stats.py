"""agentgym.evaluation.stats against exact values, hand computation, scipy, and rliable's own code."""

from __future__ import annotations

import importlib.util
import math
import sys
import types
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.evaluation import stats

unit = st.floats(0, 1, allow_subnormal=False)
by_task = st.dictionaries(st.text(max_size=3), st.lists(unit, min_size=1, max_size=4), min_size=1, max_size=8)


@st.composite
def tables(draw: st.DrawFn, tasks: int = 3) -> np.ndarray:
    rows = draw(st.lists(st.lists(st.integers(0, 4), min_size=tasks, max_size=tasks), min_size=1, max_size=5))
    return np.asarray(rows, float)


@pytest.fixture(scope="module")
def rliable() -> Iterator[types.SimpleNamespace]:
    """rliable's library and metrics. rliable pins arch<8, whose `arch/__init__.py` imports volatility models that
    do not import under pandas 3; rliable wants only `arch.bootstrap`, which does. So that `__init__` is passed over:
    an empty package with the same path stands in for it while the tests here run."""
    spec = importlib.util.find_spec("arch")
    assert spec is not None
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.split(".")[0] in {"arch", "rliable"}]:
            patch.delitem(sys.modules, name)
        package = types.ModuleType("arch")
        package.__path__ = list(spec.submodule_search_locations or [])
        patch.setitem(sys.modules, "arch", package)
        from rliable import library, metrics

        yield types.SimpleNamespace(library=library, metrics=metrics)
        for name in [name for name in sys.modules if name.split(".")[0] in {"arch", "rliable"}]:
            sys.modules.pop(name)


@pytest.fixture
def global_seed() -> Iterator[None]:
    """rliable draws from numpy's global generator, whatever `random_state` it is given."""
    state = np.random.get_state()
    np.random.seed(7)
    yield
    np.random.set_state(state)


# pass@k and pass^k


@pytest.mark.parametrize(
    ("n", "c", "k", "at", "hat"),
    [
        (10, 3, 1, 0.3, 0.3),
        (10, 3, 5, 11 / 12, 0.0),
        (10, 6, 5, 1.0, 1 / 42),
        (4, 3, 2, 1.0, 0.5),
        (5, 0, 3, 0.0, 0.0),
        (5, 5, 5, 1.0, 1.0),
        (2000, 1, 1000, 0.5, 0.0),
    ],
)
def test_pass_exact(n: int, c: int, k: int, at: float, hat: float) -> None:
    assert stats.pass_at_k(n, c, k) == pytest.approx(at, rel=1e-12, abs=0)
    assert stats.pass_hat_k(n, c, k) == pytest.approx(hat, rel=1e-12, abs=0)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.83, 1.0])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_pass_is_unbiased(p: float, k: int) -> None:
    n = 5
    chance = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    at = sum(w * stats.pass_at_k(n, c, k) for c, w in enumerate(chance))
    hat = sum(w * stats.pass_hat_k(n, c, k) for c, w in enumerate(chance))
    assert at == pytest.approx(1 - (1 - p) ** k, abs=1e-12)
    assert hat == pytest.approx(p**k, abs=1e-12)


def test_pass_averages_after_the_estimate() -> None:
    counts = [(4, 0), (4, 4)]  # from the average c=2, pass@2 would be 5/6 and pass^2 1/6
    assert stats.mean_pass_at_k(counts, 2) == 0.5
    assert stats.mean_pass_hat_k(counts, 2) == 0.5
    assert stats.mean_pass_at_k([(2, 1), (10, 3)], 1) == pytest.approx(0.4)  # tasks weigh the same, not attempts


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(3, 9), st.integers(0, 3)), min_size=1, max_size=6), st.randoms())
def test_pass_task_order_is_nothing(counts: list[tuple[int, int]], random) -> None:
    shuffled = random.sample(counts, len(counts))
    for mean in (stats.mean_pass_at_k, stats.mean_pass_hat_k):
        assert mean(counts, 3) == mean(shuffled, 3)
        assert mean(counts, 1) == pytest.approx(np.mean([c / n for n, c in counts]))
    assert stats.mean_pass_hat_k(counts, 3) <= stats.mean_pass_at_k(counts, 3)


def test_pass_refuses() -> None:
    with pytest.raises(
        ValueError, match=r"pass@4 needs at least 4 attempts at every task; 2 of 3 .*number 1, with n=3"
    ):
        stats.mean_pass_at_k([(4, 1), (3, 1), (2, 1)], 4)
    with pytest.raises(ValueError, match=r"pass\^4 needs at least 4 attempts"):
        stats.mean_pass_hat_k([(3, 3)], 4)
    with pytest.raises(ValueError, match="no tasks"):
        stats.mean_pass_at_k([], 1)
    for function in (stats.pass_at_k, stats.pass_hat_k):
        for n, c, k in [(3, 1, 4), (3, 4, 1), (3, -1, 1), (3, 1, 0), (0, 0, 1)]:
            with pytest.raises(ValueError, match="needs"):
                function(n, c, k)
        with pytest.raises(TypeError):
            function(4, 1.5, 2)  # an averaged c


# Wilson


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (0, 20), (3, 20), (10, 20), (20, 20), (611, 1000)])
def test_wilson_is_scipys(successes: int, n: int, confidence: float) -> None:
    ours = stats.wilson(successes, n, confidence)
    theirs = scipy.stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert (ours.estimate, ours.n, ours.unit) == (successes / n, n, "attempts")


@settings(deadline=None)
@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_contains_and_mirrors(counts: tuple[int, int]) -> None:
    successes, n = counts
    one, other = stats.wilson(successes, n), stats.wilson(n - successes, n)
    assert 0 <= one.low <= one.estimate <= one.high <= 1
    assert (one.low, one.high) == pytest.approx((1 - other.high, 1 - other.low), abs=1e-12)


def test_wilson_refuses() -> None:
    for successes, n in [(0, 0), (-1, 3), (4, 3)]:
        with pytest.raises(ValueError, match="successes"):
            stats.wilson(successes, n)
    for confidence in (0, 1, 95):
        with pytest.raises(ValueError, match="between 0 and 1"):
            stats.wilson(1, 2, confidence)


# Resampling tasks


def test_interval_prints() -> None:
    interval = stats.Interval(0.6118, 0.55, 0.6712, 40)
    assert interval.percent() == "61.2 [55.0, 67.1]"
    assert interval.percent(0) == "61 [55, 67]"
    assert str(interval) == "0.612 [0.550, 0.671]"
    with pytest.raises(AttributeError):
        interval.low = 0  # type: ignore[misc]


def test_cluster_weighs_tasks_not_attempts() -> None:
    interval = stats.cluster_bootstrap({"a": [1], "b": [0, 0, 0], "c": [1, 0]})
    assert interval.estimate == 0.5
    assert (interval.n, interval.unit, interval.dropped, interval.note) == (3, "tasks", 0, "")
    assert (interval.low, interval.high) == (0, 1)  # three zeros come up 1 time in 27, more than 1 in 40


def test_cluster_two_tasks_by_hand() -> None:
    """Means 0 and 1: a replication is 0, 1/2 or 1 with chance 1/4, 1/2, 1/4."""
    scores = {"a": [0.0], "b": [1.0]}
    half, most = (stats.cluster_bootstrap(scores, confidence=confidence) for confidence in (0.4, 0.6))
    assert (half.low, half.high) == (0.5, 0.5)
    assert (most.low, most.high) == (0, 1)
    assert "2 tasks" in half.note


def test_cluster_is_scipys_bootstrap() -> None:
    rng = np.random.default_rng(3)
    scores = {f"t{i}": rng.random(4).tolist() for i in range(30)}
    means = np.array([np.mean(x) for x in scores.values()])
    ours = stats.cluster_bootstrap(scores, replications=40_000, confidence=0.9, seed=1)
    theirs = scipy.stats.bootstrap(
        (means,), np.mean, method="percentile", n_resamples=40_000, confidence_level=0.9, rng=np.random.default_rng(2)
    ).confidence_interval
    assert ours.estimate == pytest.approx(means.mean())
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.002)
    normal = scipy.stats.norm.ppf(0.95) * means.std() / math.sqrt(30)
    assert (ours.high - ours.low) / 2 == pytest.approx(normal, rel=0.05)


@settings(deadline=None)
@given(by_task, st.randoms(), st.integers(0, 9))
def test_cluster_properties(scores: dict[str, list[float]], random, seed: int) -> None:
    interval = stats.cluster_bootstrap(scores, replications=500, seed=seed)
    shuffled = {
        task: random.sample(scores[task], len(scores[task])) for task in random.sample(list(scores), len(scores))
    }
    assert stats.cluster_bootstrap(shuffled, replications=500, seed=seed) == interval
    assert stats.cluster_bootstrap(scores, replications=500, seed=np.random.default_rng(seed)) == interval
    means = [np.mean(x) for x in scores.values()]
    assert interval.estimate == pytest.approx(np.mean(means), abs=1e-12)
    assert interval.low <= interval.estimate + 1e-12
    assert interval.estimate - 1e-12 <= interval.high
    if set(means) not in ({0.0}, {1.0}):  # there the interval is Wilson's, which reaches past the tasks that were drawn
        assert min(means) - 1e-12 <= interval.low <= interval.high <= max(means) + 1e-12
    assert bool(interval.note) == (len(scores) < 3)


@settings(deadline=None)
@given(by_task, st.integers(0, 9))
def test_paired_with_itself_is_nothing(scores: dict[str, list[float]], seed: int) -> None:
    interval = stats.paired_bootstrap(scores, scores, replications=200, seed=seed)
    assert (interval.estimate, interval.low, interval.high, interval.dropped) == (0, 0, 0, 0)


@settings(deadline=None)
@given(by_task, by_task, st.randoms())
def test_paired_properties(a: dict[str, list[float]], b: dict[str, list[float]], random) -> None:
    a, b = {**a, "shared": [0.5]}, {**b, "shared": [1.0]}
    shared = set(a) & set(b)
    interval = stats.paired_bootstrap(a, b, replications=200)
    assert interval.n == len(shared)
    assert interval.dropped == len(set(a) - shared) + len(set(b) - shared)
    assert interval.estimate == pytest.approx(np.mean([np.mean(b[t]) - np.mean(a[t]) for t in shared]), abs=1e-12)
    assert interval.estimate == pytest.approx(-stats.paired_bootstrap(b, a, replications=10).estimate, abs=1e-12)
    shuffled = {task: b[task] for task in random.sample(list(b), len(b))}
    assert stats.paired_bootstrap(a, shuffled, replications=200) == interval


def test_paired_cancels_difficulty() -> None:
    """b is better by 0.1 on each task, while tasks range over all of [0, 0.9]."""
    a = {i: [0.09 * i] for i in range(11)}
    b = {i: [0.09 * i + 0.1] for i in range(11)}
    paired = stats.paired_bootstrap(a, {**b, "new": [0.0]})
    assert (paired.estimate, paired.low, paired.high) == pytest.approx((0.1, 0.1, 0.1))
    assert (paired.n, paired.dropped) == (11, 1)
    assert stats.cluster_bootstrap(a).high > stats.cluster_bootstrap(b).low  # unpaired, the two overlap


def test_tasks_refused() -> None:
    with pytest.raises(ValueError, match="no tasks"):
        stats.cluster_bootstrap({})
    with pytest.raises(ValueError, match="share no task"):
        stats.paired_bootstrap({"a": [1]}, {"b": [1]})
    for scores in ([], [math.nan], [math.inf]):
        with pytest.raises(ValueError, match="'a' needs at least one score"):
            stats.cluster_bootstrap({"a": scores})
    with pytest.raises(ValueError, match="replication"):
        stats.cluster_bootstrap({"a": [1]}, replications=0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        stats.cluster_bootstrap({"a": [1]}, confidence=95)


def test_chunks_change_nothing_but_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {i: [float(i)] for i in range(7)}
    expected = stats.cluster_bootstrap(scores, replications=1000)
    monkeypatch.setattr(stats, "_CHUNK", 7 * 13)
    assert stats.cluster_bootstrap(scores, replications=1000) == expected
    monkeypatch.setattr(stats, "_CHUNK", 1)
    assert stats.cluster_bootstrap(scores, replications=1000) == expected


def test_replications_are_as_many_as_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    row_counts: list[int] = []

    def mean(rows: np.ndarray) -> np.ndarray:
        row_counts.append(len(rows))
        return rows.mean(axis=1)

    monkeypatch.setattr(stats, "_CHUNK", 4 * 30)
    stats.stratified_bootstrap([[1, 2], [3, 4]], mean, replications=100)
    assert row_counts == [1, 30, 30, 30, 10]  # the estimate, then the replications


def test_cluster_coverage() -> None:
    """A task's chance of success is Beta(½, ½), mean ½, and it is tried 8 times: 95% intervals cover ½ about 95% of the
    time (a little less, since a percentile bootstrap of 40 has n for n-1). Wilson over the pooled attempts takes them
    as independent, and covers far less."""
    rng = np.random.default_rng(11)
    simulations, tasks, attempts = 400, 40, 8
    covered = pooled = 0
    for _ in range(simulations):
        wins = rng.random((tasks, attempts)) < rng.beta(0.5, 0.5, size=(tasks, 1))
        interval = stats.cluster_bootstrap(dict(enumerate(wins.astype(float))), replications=600, seed=rng)
        covered += interval.low <= 0.5 <= interval.high
        naive = stats.wilson(int(wins.sum()), wins.size)
        pooled += naive.low <= 0.5 <= naive.high
    assert 0.91 <= covered / simulations <= 0.98
    assert pooled / simulations < 0.75


# Resampling runs


def test_iqm_exact() -> None:
    assert stats.iqm([0, 1, 2, 3, 4, 5, 6, 1000]) == 3.5
    assert stats.iqm([5.0]) == 5
    assert stats.iqm([0, 1, 5]) == 2  # floor(3/4) = 0: nothing dropped
    assert stats.iqm([[1000, 1], [3, -1000]]) == 2


@settings(deadline=None)
@given(tables())
def test_iqm_is_scipys(scores: np.ndarray) -> None:
    assert stats.iqm(scores) == pytest.approx(scipy.stats.trim_mean(scores, 0.25, axis=None), abs=1e-12)


def test_gap_and_profile() -> None:
    scores = [[0.0, 0.5], [1.0, 3.0]]
    assert stats.optimality_gap(scores) == pytest.approx(1 - 2.5 / 4)
    assert stats.optimality_gap(scores, gamma=2) == pytest.approx(2 - 3.5 / 4)
    assert stats.performance_profile(scores, [-1, 0, 0.4, 0.5, 3]).tolist() == [1, 0.75, 0.75, 0.5, 0]


def test_stratified_by_hand() -> None:
    """Two runs on one task, 0 and 1: as for two tasks. A second, constant task halves what the first adds."""
    one = stats.stratified_bootstrap([[0], [1]], lambda rows: rows.mean(axis=1), confidence=0.6)
    two = stats.stratified_bootstrap([[0, 10], [1, 10]], lambda rows: rows.mean(axis=1), confidence=0.6)
    assert (one.estimate, one.low, one.high) == (0.5, 0, 1)
    assert (two.estimate, two.low, two.high) == (5.25, 5, 5.5)
    assert (two.n, two.unit) == (2, "runs")


def test_runs_are_resampled_for_each_task_apart() -> None:
    """Two like columns of 0 and 1: a replication is 0 with chance 1/16, where whole rows would give 1/4."""
    scores = [[0, 0], [1, 1]]
    mean = stats.stratified_bootstrap(scores, lambda rows: rows.mean(axis=1), confidence=0.6)
    better = stats.probability_of_improvement(scores, [[0.5, 0.5]], confidence=0.6)
    worse = stats.probability_of_improvement([[0.5, 0.5]], scores, confidence=0.6)
    for interval in (mean, better, worse):
        assert (interval.estimate, interval.low, interval.high) == (0.5, 0.25, 0.75)


def test_few_runs_are_noted() -> None:
    scores = np.random.default_rng(0).random((3, 5))
    single = stats.stratified_bootstrap(scores[:1], replications=100)
    assert single.low == single.estimate == single.high
    assert single.note == "resampled from 1 run: too few for an interval (at least 3)"
    assert "2 runs" in stats.stratified_bootstrap(scores[:2], replications=100).note
    assert not stats.stratified_bootstrap(scores, replications=100).note
    assert "2 runs" in stats.probability_of_improvement(scores, scores[:2], replications=100).note
    assert not stats.probability_of_improvement(scores, scores, replications=100).note


@settings(deadline=None)
@given(tables(), st.randoms())
def test_stratified_order_is_nothing(scores: np.ndarray, random) -> None:
    interval = stats.stratified_bootstrap(scores, replications=100)
    shuffled = np.array([random.sample(column.tolist(), len(column)) for column in scores.T]).T
    shuffled = shuffled[:, random.sample(range(3), 3)]
    assert stats.stratified_bootstrap(shuffled, replications=100) == interval
    assert scores.min() - 1e-12 <= interval.low <= interval.high <= scores.max() + 1e-12


@settings(deadline=None)
@given(tables(), tables(), st.randoms())
def test_improvement_properties(x: np.ndarray, y: np.ndarray, random) -> None:
    interval = stats.probability_of_improvement(x, y, replications=50)
    pairs = [np.mean([(a > b) + (a == b) / 2 for a in x[:, t] for b in y[:, t]]) for t in range(3)]
    assert interval.estimate == pytest.approx(np.mean(pairs), abs=1e-12)
    assert interval.n == min(len(x), len(y))
    assert -1e-12 <= interval.low <= interval.high <= 1 + 1e-12
    back = stats.probability_of_improvement(y, x, replications=50)
    assert back.estimate == pytest.approx(1 - interval.estimate, abs=1e-12)
    assert stats.probability_of_improvement(x, x, replications=1).estimate == pytest.approx(0.5, abs=1e-12)
    order = random.sample(range(3), 3)
    again = stats.probability_of_improvement(x[::-1, order], y[:, order], replications=50)
    assert (again.low, again.high) == pytest.approx((interval.low, interval.high), abs=1e-12)


def test_improvement_is_mann_whitney() -> None:
    rng = np.random.default_rng(4)
    x, y = rng.integers(0, 6, (7, 4)), rng.integers(0, 5, (5, 4))
    u = [scipy.stats.mannwhitneyu(x[:, t], y[:, t]).statistic / 35 for t in range(4)]
    assert stats.probability_of_improvement(x, y, replications=1).estimate == pytest.approx(np.mean(u))
    assert stats.probability_of_improvement([[1], [2]], [[0], [2]], replications=1).estimate == 0.625


def test_improvement_separated_is_certain() -> None:
    interval = stats.probability_of_improvement(np.ones((4, 3)), np.zeros((6, 3)), replications=100)
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((1, 1, 1))
    assert interval.n == 4


def test_tables_refused() -> None:
    for bad in ([1, 2], [[]], [[math.nan]], [[[1]]]):
        with pytest.raises(ValueError, match="scores must be"):
            stats.stratified_bootstrap(bad)
    with pytest.raises(ValueError, match=r"same tasks; got \(1, 2\) and \(1, 3\)"):
        stats.probability_of_improvement([[1, 2]], [[1, 2, 3]])
    with pytest.raises(ValueError, match="finite"):
        stats.iqm([])


# rliable


def test_points_are_rliables(rliable: types.SimpleNamespace) -> None:
    rng = np.random.default_rng(5)
    for runs, tasks in [(1, 1), (3, 5), (10, 26), (7, 3)]:
        x, y = rng.integers(0, 9, (runs, tasks)) / 4, rng.integers(0, 9, (runs + 2, tasks)) / 4
        metrics = rliable.metrics
        assert stats.iqm(x) == pytest.approx(metrics.aggregate_iqm(x))
        assert stats.optimality_gap(x) == pytest.approx(metrics.aggregate_optimality_gap(x))
        assert stats.optimality_gap(x, 2) == pytest.approx(metrics.aggregate_optimality_gap(x, 2))
        ours = stats.probability_of_improvement(x, y, replications=1).estimate
        assert ours == pytest.approx(metrics.probability_of_improvement(x, y))
        thresholds = np.linspace(0, 2.5, 11)
        theirs = [rliable.library.run_score_deviation(x, threshold) for threshold in thresholds]
        assert stats.performance_profile(x, thresholds) == pytest.approx(theirs)


@pytest.mark.usefixtures("global_seed")
def test_iqm_interval_is_rliables(rliable: types.SimpleNamespace) -> None:
    scores = np.random.default_rng(6).gamma(2, size=(5, 8)) * np.arange(1, 9)
    points, intervals = rliable.library.get_interval_estimates(
        {"x": scores}, lambda s: np.array([rliable.metrics.aggregate_iqm(s)]), reps=8000
    )
    ours = stats.stratified_bootstrap(scores)
    low, high = intervals["x"][:, 0]
    assert ours.estimate == pytest.approx(points["x"][0])
    assert (ours.low, ours.high) == pytest.approx((low, high), abs=0.04 * (high - low))


@pytest.mark.usefixtures("global_seed")
def test_improvement_interval_is_rliables(rliable: types.SimpleNamespace) -> None:
    rng = np.random.default_rng(8)
    x, y = rng.normal(0.5, 1, (6, 4)), rng.normal(0, 1, (4, 4))
    points, intervals = rliable.library.get_interval_estimates(
        {"x,y": [x, y]}, lambda a, b: np.array([rliable.metrics.probability_of_improvement(a, b)]), reps=800
    )
    ours = stats.probability_of_improvement(x, y, replications=20_000)
    low, high = intervals["x,y"][:, 0]
    assert ours.estimate == pytest.approx(points["x,y"][0])
    assert (ours.low, ours.high) == pytest.approx((low, high), abs=0.08 * (high - low))


@pytest.mark.parametrize(("score", "low", "high"), [(0.0, 0.0, 0.4899), (1.0, 0.5101, 1.0)])
def test_equal_tasks_get_an_interval_with_width(score, low, high) -> None:
    found = stats.cluster_bootstrap({task: [score, score] for task in range(4)})
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


def test_percent_rounds_halves_as_the_report_does() -> None:
    assert stats.Interval(0.9625, 0.9, 1.0, 20).percent() == "96.3 [90.0, 100.0]"


# Wilson's interval for several attempts at each task


@pytest.mark.parametrize("tail", [0.025, 0.005, 0.1])
def test_quantiles_of_student_are_scipys(tail) -> None:
    for degrees in (1, 2, 3, 4, 5, 9, 10, 49, 500):
        assert stats._student(tail, degrees) == pytest.approx(scipy.stats.t.ppf(1 - tail, degrees), rel=1e-9)


def test_equal_tasks_have_an_honest_interval() -> None:
    """Ten tasks of ten solved, four attempts each: Wilson's interval of ten, not a point, nor that of forty."""
    solved = stats.cluster_wilson({task: [1.0] for task in range(10)}, 40)
    assert (solved.low, solved.high) == (stats.wilson(10, 10).low, 1.0)
    half = stats.cluster_wilson({task: [0.5] for task in range(10)}, 40)
    assert half.low < stats.wilson(20, 40).low < 0.5 < stats.wilson(20, 40).high < half.high
    few = stats.cluster_wilson({"a": [1.0], "b": [0.5]}, 4)
    assert few.note
    assert few.high - few.low > 0.8


def test_attempts_that_agree_within_tasks_count_as_one() -> None:
    means = [1.0] * 6 + [0.0] * 4
    found = stats.cluster_wilson(dict(enumerate([[mean] for mean in means])), 80)
    one = stats.wilson(6, 10)
    assert found.high - found.low > one.high - one.low


def test_cluster_wilson_refused() -> None:
    with pytest.raises(ValueError, match="need a task"):
        stats.cluster_wilson({}, 0)
    with pytest.raises(ValueError, match="got 1 at 2"):
        stats.cluster_wilson({"a": [1], "b": [0]}, 1)
    with pytest.raises(ValueError, match="between 0 and 1"):
        stats.cluster_wilson({"a": [2], "b": [0]}, 2)


@pytest.mark.parametrize("tasks", [5, 10, 30])
@pytest.mark.parametrize("p", [0.5, 0.8, 0.95])
def test_coverage_of_cluster_wilson(tasks, p) -> None:
    """Tasks alike, tasks that differ, and tasks that are solved always or never: at least 93% of intervals cover. A
    bootstrap over ten tasks falls to 86%."""
    rng = np.random.default_rng([tasks, int(100 * p)])
    simulations, attempts = 1000, 4
    for concentration in (0.2, 2.0, None):
        chance = rng.beta(p * (concentration or 1), (1 - p) * (concentration or 1), size=(simulations, tasks))
        chance = chance if concentration else np.full_like(chance, p)
        means = rng.binomial(attempts, chance) / attempts
        found = [stats.cluster_wilson(dict(enumerate(row[:, None])), tasks * attempts) for row in means]
        assert np.mean([interval.low <= p <= interval.high for interval in found]) >= 0.93
