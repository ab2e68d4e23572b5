"""The running baseline of roles: numbers of the released code and of the paper."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from agentgym.rollouts.trajectory import StopReason, Trajectory
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.signals.base import SignalContext
from agentgym_trainers.signals.role_baseline import RoleBaseline, RoleOptions, running_baseline
from agentgym_trainers.testing import toy_batch


def games(rewards: list[list[float]], roles: list[int], envs: Any = "poker") -> SignalContext:
    batch = toy_batch(rewards, role_N=roles)
    envs = [envs] * len(rewards) if isinstance(envs, str) else envs
    played = [Trajectory(env, "train", 0, 0, i, (), StopReason.TERMINATED) for i, env in enumerate(envs)]
    return SignalContext(batch, [], played, 0, np.random.default_rng(0))


def annotate(signal: RoleBaseline, context: SignalContext) -> np.ndarray:
    return asyncio.run(signal.annotate(context))["role_baseline_N"]


def fit(signal: RoleBaseline, context: SignalContext) -> dict[str, float]:
    return asyncio.run(signal.fit(context))


def test_one_role() -> None:
    advantages = (1, -1.05, 1.0025)
    returns = np.array([1.0, -1.0, 1.0])
    used, after = running_baseline(returns)
    assert returns - used == pytest.approx(advantages)
    assert after == pytest.approx(0.047625)
    assert [running_baseline(returns[:n])[1] for n in (1, 2)] == pytest.approx([0.05, -0.0025])
    signal = RoleBaseline(RoleOptions())
    context = games([[1], [-1], [1]], [0, 0, 0])
    assert context.batch.reward_N - annotate(signal, context) == pytest.approx(advantages)
    fit(signal, context)
    assert signal.baseline == {("poker", 0): pytest.approx(0.047625)}


def test_a_stream_of_equal_rewards_stops_teaching() -> None:
    used, _ = running_baseline(np.ones(50))
    assert 1 - used == pytest.approx(0.95 ** np.arange(50))


def test_roles_and_envs_are_independent_and_swap() -> None:
    """Two turns each; role 0 wins the first game, role 1 the second, 0 the third in another environment."""
    rewards = [[0, 0, 1, -1], [0, 0, -1, 1], [0, 0, 1, -1]]
    envs = ["poker", "poker", "go"]
    signal, swapped = RoleBaseline(RoleOptions()), RoleBaseline(RoleOptions())
    context = games(rewards, [0, 1] * 6, envs)
    found = annotate(signal, context)
    assert found == pytest.approx([0, 0, 0, 0, 0.05, -0.05, 0.05, -0.05, 0, 0, 0, 0])
    fit(signal, context)
    expected = {("poker", 0): -0.0025, ("poker", 1): 0.0025, ("go", 0): 0.05, ("go", 1): -0.05}
    assert signal.baseline == pytest.approx(expected)
    other = games(rewards, [1, 0] * 6, envs)
    assert annotate(swapped, other) == pytest.approx(found)
    fit(swapped, other)
    assert swapped.baseline == pytest.approx({(w, 1 - role): b for (w, role), b in expected.items()})


def test_one_baseline_for_all_roles_favors_the_first_mover() -> None:
    """Role 0 always wins: with baselines of their own neither role is told anything in the end; with a shared one the
    advantage stays at ±1."""
    own = RoleBaseline(RoleOptions())
    for _ in range(40):
        context = games([[1, -1]] * 4, [0, 1] * 4)
        last = context.batch.reward_N - annotate(own, context)
        fit(own, context)
    assert np.abs(last).max() < 0.01
    used, _ = running_baseline(np.array([1.0, -1.0] * 160))
    shared = np.array([1.0, -1.0] * 160) - used
    assert np.abs(shared[-8:]).min() > 0.9


def test_a_role_wins_what_its_own_turns_earned() -> None:
    context = games([[0.5, -1, 0.5], [1.0]], [0, 1, 0, 0])
    used = annotate(RoleBaseline(RoleOptions(alpha=0.5)), context)
    assert used == pytest.approx([0, 0, 0, 0.5])


def test_the_baseline_moves_when_it_is_fitted_and_no_sooner() -> None:
    signal, context = RoleBaseline(RoleOptions()), games([[1], [1]], [0, 1])
    for _ in range(2):
        assert annotate(signal, context).tolist() == [0, 0]
    metrics = fit(signal, context)
    assert metrics["loss"] == 1
    assert metrics["grad_norm"] == pytest.approx(np.sqrt(2))
    assert metrics["bias"] == -1
    assert (metrics["baseline_0"], metrics["baseline_1"]) == pytest.approx((0.05, 0.05))
    assert annotate(signal, context) == pytest.approx([0.05, 0.05])
    losses = []
    for _ in range(20):
        annotate(signal, context)
        losses.append(fit(signal, context)["loss"])
    assert losses == sorted(losses, reverse=True)


def test_state_goes_on_where_it_was() -> None:
    signal, again = RoleBaseline(RoleOptions()), RoleBaseline(RoleOptions())
    context = games([[1, -1], [1, -1]], [0, 1, 0, 1])
    annotate(signal, context)
    fit(signal, context)
    again.load_state_dict(signal.state_dict())
    assert (annotate(again, context) == annotate(signal, context)).all()
    assert again.baseline == signal.baseline != {}


def test_it_trains(kit, warm_oracle, tmp_path) -> None:
    """An environment of one role, where the baseline is a running mean of the return."""
    steps = kit.trained("reinforce", warm_oracle, tmp_path, "credit.assigner=rae", "signals.role.alpha=0.9")
    assert len(steps) == 3
    assert all(step["optim/skipped"] == 0 for step in steps)
    baselines = [step["role/baseline_0"] for step in steps]
    assert min(baselines) > 0
    assert max(baselines) < 1
    state = checkpoint.load_state(tmp_path / "checkpoints" / "step-000003")["signals"]["role"]["baseline"]
    assert state == [["oracle", 0, pytest.approx(baselines[2])]]
