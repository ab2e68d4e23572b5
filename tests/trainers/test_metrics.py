"""Metrics: what is logged, what is not counted, and how a resumed run goes on."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from agentgym.rollouts.trajectory import StopReason, Trajectory, Turn
from agentgym_credit.batch import Credit
from agentgym_trainers.monitoring.metrics import MetricsLog, credit_metrics, rollout_metrics
from agentgym_trainers.testing import c3


def lines(log: MetricsLog) -> list[dict]:
    return [json.loads(line) for line in log.path.read_text(encoding="utf-8").splitlines()]


def test_a_line_a_step_and_none_for_what_is_no_number(tmp_path) -> None:
    log = MetricsLog(tmp_path)
    log.write("rl", 1, {"a/x": 1, "a/y": math.nan, "a/z": math.inf, "a/w": np.float32(0.5)})
    log.close()
    assert lines(log) == [{"phase": "rl", "step": 1, "a/x": 1.0, "a/y": None, "a/z": None, "a/w": 0.5}]


def test_a_resumed_log_drops_what_came_after_its_checkpoint(tmp_path) -> None:
    log = MetricsLog(tmp_path)
    log.write("rl", 1, {"a/x": 1.0})
    position = log.position
    log.write("rl", 2, {"a/x": 2.0})
    with log.path.open("a") as file:
        file.write('{"phase": "rl", "st')  # killed in the middle of a line
    log.close()
    resumed = MetricsLog(tmp_path, position)
    resumed.write("rl", 2, {"a/x": 3.0})
    resumed.close()
    assert [line["a/x"] for line in lines(resumed)] == [1.0, 3.0]


def test_a_log_that_was_lost_begins_anew(tmp_path) -> None:
    log = MetricsLog(tmp_path, 5000)
    log.write("rl", 9, {})
    log.close()
    assert lines(log) == [{"phase": "rl", "step": 9}]


def turn(index: int, reward: float = 0.0, **options) -> Turn:
    return Turn(index=index, observation="o", reply="r", action="go", reward=reward, **options)


WON = Trajectory(
    env="e", split="train", task=0, seed=0, attempt=0, stop=StopReason.TERMINATED,
    turns=(turn(0), turn(1, finish="length"), turn(2, 1.0, info={"success": True})),
)  # fmt: skip
CUT = replace(WON, stop=StopReason.MAX_TURNS, turns=(replace(turn(0), action=None),), forks=("why",))
INVALID = replace(WON, turns=(turn(0, -1.0, info={"valid_action": False}),))
FAILED = replace(WON, stop=StopReason.ENVIRONMENT_FAILED, turns=(turn(0, 50.0, info={"success": True}),))


def test_failures_enter_nothing_but_their_own_count() -> None:
    metrics = rollout_metrics([WON, CUT, FAILED, INVALID])
    assert metrics == {
        "rollout/success": pytest.approx(1 / 3),
        "rollout/score": pytest.approx(0),
        "rollout/turns": pytest.approx(5 / 3),
        "rollout/truncated": pytest.approx(1 / 3),
        "rollout/invalid": pytest.approx(2 / 5),
        "rollout/cut_by_length": pytest.approx(1 / 5),
        "rollout/failed": 1.0,
        "rollout/forks": pytest.approx(1 / 3),
    }
    assert rollout_metrics([FAILED])["rollout/failed"] == 1
    assert all(math.isfinite(value) for value in rollout_metrics([FAILED]).values())


def test_credit_and_critic() -> None:
    batch = c3()
    credit = Credit(np.array([0.5, 0.0, -0.5]), {"value_N": np.array([0.2, 0.5, 0.6])})
    metrics = credit_metrics(batch, credit)
    assert metrics["credit/mean"] == 0
    assert metrics["credit/std"] == pytest.approx(np.std([0.5, 0, -0.5]))
    assert metrics["credit/zero_fraction"] == metrics["credit/positive_fraction"] == pytest.approx(1 / 3)
    assert metrics["value/explained_variance"] == pytest.approx(1)
    assert metrics["value/mean"] == metrics["value/target_mean"] == pytest.approx(1.3 / 3)
    flat = credit_metrics(batch, Credit(np.zeros(3), {"value_N": np.ones(3)}))
    assert "value/explained_variance" not in flat
    mean = credit_metrics(batch, Credit(np.zeros(3), {"value_N": np.array([0.2, 0.5, 1.1])}))
    assert mean["value/explained_variance"] == pytest.approx(1 - np.var([0, 0, 0.5]) / np.var([0.2, 0.5, 1.1]))
