"""A server's counters and their page for Prometheus.

Counting is plain arithmetic on the numbers of one environment, in the server's own thread; the library comes in when
somebody asks for the page.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper ends of the latency histograms' buckets."""

PAGE_TYPE = CONTENT_TYPE_LATEST

Gauges = Callable[[], dict[str, float]]


class Latencies:
    """A histogram."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    def buckets(self) -> Iterator[tuple[str, float]]:
        """(upper end, how many were at most that)."""
        at_most = 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.counts):
            at_most += count
            yield bound, at_most


class EnvMetrics:
    """The counters of one environment."""

    def __init__(self) -> None:
        self.steps, self.resets = Latencies(), Latencies()
        self.errors: Counter[str] = Counter()
        """Calls that failed, by the error's code."""
        self.ended: Counter[str] = Counter()
        """Sessions that ended: closed, lease, evicted, stopped, or the code of the failure."""
        self.restarts = 0
        """Worker processes that had to be replaced."""


class Metrics:
    """The counters of a server's environments, and gauges that are read when the page is asked for."""

    def __init__(self, envs: Iterable[str]) -> None:
        self.envs = {env: EnvMetrics() for env in envs}
        self._gauges: list[tuple[str, str, Gauges]] = []
        self._registry = CollectorRegistry()
        self._registry.register(_Page(self.envs, self._gauges))

    def gauge(self, name: str, help: str, read: Gauges) -> None:
        """Show what `read()` gives for each environment."""
        self._gauges.append((name, help, read))

    def render(self) -> bytes:
        """The page, in Prometheus' text format."""
        return generate_latest(self._registry)


class _Page(Collector):
    def __init__(self, envs: dict[str, EnvMetrics], gauges: Sequence[tuple[str, str, Gauges]]) -> None:
        self._envs, self._gauges = envs, gauges

    def collect(self) -> Iterator[Metric]:
        steps = HistogramMetricFamily("agentgym_step_seconds", "Steps that environments applied.", labels=["env"])
        resets = HistogramMetricFamily("agentgym_reset_seconds", "Episodes begun.", labels=["env"])
        errors = CounterMetricFamily("agentgym_errors", "Calls that failed.", labels=["env", "code"])
        ended = CounterMetricFamily("agentgym_sessions_ended", "Sessions that ended.", labels=["env", "why"])
        restarts = CounterMetricFamily("agentgym_worker_restarts", "Worker processes replaced.", labels=["env"])
        for env, counted in self._envs.items():
            steps.add_metric([env], list(counted.steps.buckets()), counted.steps.total_s)
            resets.add_metric([env], list(counted.resets.buckets()), counted.resets.total_s)
            for code, count in counted.errors.items():
                errors.add_metric([env, code], count)
            for why, count in counted.ended.items():
                ended.add_metric([env, why], count)
            restarts.add_metric([env], counted.restarts)
        yield from (steps, resets, errors, ended, restarts)
        for name, help, read in self._gauges:
            gauge = GaugeMetricFamily(name, help, labels=["env"])
            for env, value in read().items():
                gauge.add_metric([env], value)
            yield gauge
