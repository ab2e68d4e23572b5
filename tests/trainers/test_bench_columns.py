"""The bench's columns: a bug in a signal is not an outcome of the bench."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agentgym_trainers.credit_bench import columns
from agentgym_trainers.signals import SIGNALS
from agentgym_trainers.signals.base import Signal, SignalContext, SignalKind
from agentgym_trainers.testing import random_batch


class Buggy(Signal):
    async def annotate(self, context: Any) -> dict[str, Any]:
        raise KeyError("missing")


def test_a_bug_in_a_signal_stays_a_bug(monkeypatch) -> None:
    kind = SignalKind(SIGNALS["role"].options, lambda options, parts: Buggy(), frozenset())  # pyright: ignore
    monkeypatch.setitem(SIGNALS, "role", kind)
    bench: Any = SimpleNamespace(parts=None, passes=1, contexts=[], metrics={})
    rng = np.random.default_rng(0)
    context = SignalContext(random_batch(rng), [], [], 0, rng)
    options = SIGNALS["role"].options()
    with pytest.raises(KeyError, match="missing"):
        asyncio.run(columns.Columns._signal(bench, "role", options, context, "role"))  # pyright: ignore
