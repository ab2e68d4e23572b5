"""The bench's columns: a bug in a signal is not an outcome of the bench."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from agentgym_trainers.bench import columns
from agentgym_trainers.signals import SIGNALS, SignalKind


class Buggy:
    async def annotate(self, scene: Any) -> dict[str, Any]:
        raise KeyError("missing")


def test_a_bug_in_a_signal_stays_a_bug(monkeypatch) -> None:
    kind = SignalKind(SIGNALS["role"].options, lambda options, parts: Buggy(), frozenset())  # pyright: ignore
    monkeypatch.setitem(SIGNALS, "role", kind)
    bench: Any = SimpleNamespace(parts=None, passes=1, scenes=[], told={})
    scene: Any = SimpleNamespace(batch=SimpleNamespace(with_columns=lambda: None))
    with pytest.raises(KeyError, match="missing"):
        options = SIGNALS["role"].options()
        asyncio.run(columns.Columns._signal(bench, "role", options, scene, "role"))  # pyright: ignore
