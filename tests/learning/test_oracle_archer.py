"""ArCHer's recipe on the oracle environment in words: a policy that says nearly random words learns from Q − V alone.

The warm-up imitates a solver that is random nine times in ten, which hardly reads the room, so the critic's encoder is
trained too.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from agentgym_trainers.recipe import resolve
from agentgym_trainers.run import run

ORACLE = [
    "env.name=oracle", "env.serve=false", "run.steps=14", "run.checkpoint_every=14", "run.trajectories_every=14",
    "rollout.groups=8", "rollout.max_new_tokens=6", "rollout.max_length=256", "rollout.concurrency=64",
    "rollout.lockstep=true", "signals.twin.encoder=trained", "signals.twin.capacity=1000", "signals.twin.pool=256",
    "signals.twin.updates=25", "signals.twin.batch=64", "signals.twin.actor_states=256", "optim.lr=3e-3",
    "loss.kl=0.1", "credit.normalize=none",
    "sft.demonstrations=128", "sft.noise=0.9", "sft.lr=5e-3", "sft.batch=16", "sft.max_steps=60",
    "sft.stop_at_success=1.0", "sft.check_every=60", "eval.split=train", "eval.tasks=1", "eval.attempts=128",
    "model.tiny.hidden_size=32", "model.tiny.layers=1", "model.tiny.heads=1", "model.tiny.intermediate_size=64",
    "model.tiny.max_length=256",
]  # fmt: skip
START, REACHED = 0.4, 0.55


@pytest.mark.learning
def test_archer_learns_the_oracle(tmp_path: Path) -> None:
    outcome = asyncio.run(run(resolve("archer", ORACLE), tmp_path / "run"))
    assert outcome.before is not None
    assert outcome.after is not None
    before, after = outcome.before.summary.overall.success, outcome.after.summary.overall.success
    assert before.estimate < START
    assert after.estimate > REACHED
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["phase"] == "rl"]
    assert steps[-1]["twin/q_loss"] < 0.5 * steps[0]["twin/q_loss"]
    assert steps[-1]["twin/calibration"] > 0.3
