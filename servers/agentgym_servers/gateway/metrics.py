"""Traffic of the gateway: since its start for Prometheus, of the last minute for the page."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram

LATELY_S = 60.0
SAMPLES = 2048
"""Steps whose latency is kept, of each environment."""
ERRORS_SHOWN = 20


class Meters:
    """The gateway's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("env", "verb")
        self.seconds = Histogram(
            "agentgym_gateway_seconds",
            "Time from a verb's arrival to its answer.",
            labels,
            registry=self.registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
        )
        self.errors = Counter(
            "agentgym_gateway_errors", "Verbs answered with an error.", (*labels, "code"), registry=self.registry
        )


@dataclass
class Traffic:
    """Traffic of one environment."""

    env: str
    meters: Meters
    steps: int = 0
    episodes: int = 0
    failures: Tally[str] = field(default_factory=Tally)
    """Errors by code, since the gateway's start."""
    recent: deque[dict[str, str | float]] = field(default_factory=lambda: deque(maxlen=ERRORS_SHOWN))
    _latencies: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    def answered(self, verb: str, seconds: float) -> None:
        self.meters.seconds.labels(self.env, verb).observe(seconds)
        if verb == "step":
            self.steps += 1
            self._latencies.append((time.monotonic(), seconds))
        elif verb in ("reset", "restore"):
            self.episodes += 1

    def failed(self, verb: str, code: str, message: str) -> None:
        self.meters.errors.labels(self.env, verb, code).inc()
        self.failures[code] += 1
        self.recent.append({"at": time.time(), "verb": verb, "code": code, "message": message[:300]})

    def last_minute(self) -> dict[str, float | None]:
        """Steps a second over the last minute, and their p50 and p99 in milliseconds."""
        now = time.monotonic()
        kept = [(at, seconds) for at, seconds in self._latencies if now - at < LATELY_S]
        if not kept:
            return {"steps_per_s": 0.0, "p50_ms": None, "p99_ms": None}
        full = len(self._latencies) == SAMPLES
        span = max(now - kept[0][0], 1.0) if full else LATELY_S
        p50, p99 = np.percentile([seconds * 1e3 for _, seconds in kept], (50, 99))
        return {"steps_per_s": len(kept) / span, "p50_ms": float(p50), "p99_ms": float(p99)}
