"""vLLM within the trainer's process: which failures mean that its engine is gone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from agentgym_trainers.engines.vllm.client import ServerUnavailable
from agentgym_trainers.engines.vllm.local import VllmLocal


def within(errored_after: bool) -> None:
    """A call that raises, of an engine that has died by then or has not."""
    local = object.__new__(VllmLocal)
    local.deadline_s = 5.0
    engine = SimpleNamespace(errored=False)
    local._engine = engine

    async def call() -> None:
        engine.errored = errored_after
        raise AttributeError("a bug of ours")

    asyncio.run(local._within(call(), "a reply"))


def test_a_bug_is_not_called_a_dead_engine() -> None:
    with pytest.raises(AttributeError, match="a bug of ours"):
        within(errored_after=False)


def test_a_dead_engine_is_gone() -> None:
    with pytest.raises(ServerUnavailable, match="vLLM has died at a reply: a bug of ours"):
        within(errored_after=True)
