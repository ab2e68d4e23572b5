"""Signals of an asynchronous run: each learns once from each episode, and asks the policy that is learned."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym import registry
from agentgym.session import LocalSession
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import Config
from agentgym_trainers.monitoring.metrics import MetricsLog
from agentgym_trainers.rollout.player import PolicyPlayer
from agentgym_trainers.signals.base import SignalContext
from agentgym_trainers.train import Trainer

GROUPS, SIZE, STALENESS, STEPS = 2, 2, 2, 3
TWIN = {"pool": 12, "updates": 2, "batch": 8, "warmup": 0, "actor_states": 7, "hidden": (8,)}
TABLES = {
    "learn or read the policy": {
        name: {} for name in ("progress", "prm", "instruction", "answer", "hindsight", "uncertainty")
    },
    "branched_value": {"branched_value": {"continuations": 2}},
    "twin": {"twin": TWIN},
    "digiq": {"digiq": {**TWIN, "candidates": 3}},
}


READERS = {"twin": "q_minus_v", "digiq": "digiq"}
"""Assigners of fresh replies, which have no rewards."""


def trainer_of(which: str, model: Any, tokenizer: Any, folder: Path) -> Trainer:
    tree = {
        "name": "test",
        "run": {"steps": STEPS, "checkpoint_every": STEPS},
        "env": {"name": "oracle", "serve": False},
        "rollout": {
            "groups": GROUPS, "group_size": SIZE, "max_new_tokens": 4, "max_length": 640, "concurrency": 4,
            "staleness": STALENESS,
        },
        "credit": {"assigner": READERS.get(which, "reinforce")},
        "loss": {"entropy": 0.1},  # there is something to learn from also where nobody succeeds
        "optim": {"lr": 1e-3},
        "signals": TABLES[which],
    }  # fmt: skip

    async def local() -> LocalSession:
        return LocalSession(registry.make("oracle"))

    return build(Config.model_validate(tree), folder, registry.get_spec("oracle"), local, model, model, tokenizer)


@pytest.mark.parametrize("which", TABLES)
def test_signals_learn_once_and_ask_the_present_policy(chatty, tokenizer, tmp_path, monkeypatch, which) -> None:
    """`concurrency` attempts are under way meanwhile; what signals sample has room beside them."""
    trainer = trainer_of(which, chatty(), tokenizer, tmp_path)
    fitted: dict[str, list[tuple[int, tuple[tuple[int, int], ...]]]] = {name: [] for name in trainer.signals}
    sampled: list[tuple[int, set[int]]] = []
    threads: set[int] = set()

    def remembering(name: str) -> Any:
        fit = trainer.signals[name].fit

        async def remember(context: SignalContext) -> dict[str, float]:
            threads.add(threading.get_ident())
            fitted[name].append((context.step, tuple((t.seed, t.attempt) for t in context.trajectories)))
            return await fit(context)

        return remember

    for name, signal in trainer.signals.items():
        monkeypatch.setattr(signal, "fit", remembering(name))
    replies = PolicyPlayer.replies

    async def watched(self: PolicyPlayer, states: Any, seeds: Any, count: int = 1) -> Any:
        found = await replies(self, states, seeds, count)
        sampled.append((trainer.step, {version for each in found for one in each for version in one.versions}))
        return found

    monkeypatch.setattr(PolicyPlayer, "replies", watched)
    log = MetricsLog(tmp_path)

    async def main() -> None:
        async with asyncio.timeout(100):
            await trainer.run(log)

    try:
        asyncio.run(main())
    finally:
        log.close()
        asyncio.run(trainer.engine.aclose())
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert threading.get_ident() not in threads  # episodes are played meanwhile
    for name, fits in fitted.items():
        assert [step for step, _ in fits] == [0, 1, 2], name
        assert set(Counter(episode for _, episodes in fits for episode in episodes).values()) == {1}, name
        assert all(len(episodes) == GROUPS * SIZE for _, episodes in fits), name
    for step, versions in sampled:
        assert versions == {step}
    if which in ("twin", "digiq"):
        assert sampled
        assert lines[-1][f"{which}/replay"] == pytest.approx(
            sum(line["rollout/turns"] for line in lines) * GROUPS * SIZE
        )
        if which == "twin":
            assert all(line["async/staleness_max"] == 0 for line in lines)  # fresh actions at replayed states
    if which == "branched_value":
        assert all(line["branched_value/lost"] == 0 for line in lines)
        assert all(np.isfinite(line["branched_value/bias"]) for line in lines)
