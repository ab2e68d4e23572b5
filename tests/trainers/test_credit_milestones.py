"""Credit from milestones: by hand, against a brute force, and from an environment's info to the batch."""

from __future__ import annotations

import asyncio
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym import registry
from agentgym.errors import ConfigError
from agentgym.rollouts.policy import EpisodeSpec, ScriptedPolicy
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, rollout
from agentgym.session import LocalSession
from agentgym_credit.assigners.beacon import beacon
from agentgym_trainers.data.sequences import trajectory_columns
from agentgym_trainers.recipe import resolve
from agentgym_trainers.rollout.environment import check_spec
from agentgym_trainers.testing import random_batch, toy_batch


def test_beacon_by_hand() -> None:
    """Two attempts take the key, one of them opens the door; a third reaches nothing."""
    batch = toy_batch(
        [[0, 0, 0, 1], [0, 0], [0]],
        milestone_N=[0, 0, 1, 1, 0, 1, 0],
        reached_N=[0, 1, 0, 1, 1, 0, 0],
        tokens=[2, 1, 1, 1, 1, 1, 1],
    )
    shaped = np.array([0.5, 1, 0.5, 1, 1, 0, 0])
    mean = np.array([0.625, 0.625, 0.5, 0.5, 0.625, 0.5, 0.625])
    outcome = np.array([2, 2, 2, 2, -1, -1, -1]) / 3
    credit_N = beacon(batch, gamma=0.5, omega=2.0).advantage_A[batch.first_A]
    np.testing.assert_allclose(credit_N, outcome + 2 * (shaped - mean), atol=1e-12)


def test_a_late_failure_keeps_the_credit_of_its_first_segment() -> None:
    """Both attempts took the key in one turn; what the second did later is compared only after the key."""
    batch = toy_batch([[0, 1], [0, 0]], milestone_N=[0, 1, 0, 1], reached_N=[1, 1, 1, 0])
    segments = beacon(batch).advantage_A - beacon(batch, omega=0.0).advantage_A
    assert segments.tolist() == pytest.approx([0, 0.5, 0, -0.5])


@settings(deadline=None, derandomize=True, database=None, max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_beacon_against_brute_force(seed: int) -> None:
    batch = random_batch(np.random.default_rng(seed), group_size=3)
    turns = range(len(batch.traj_N))
    reached, milestone = batch.x["reached_N"], batch.x["milestone_N"]

    def shaped(turn: int) -> float:
        later = [k for k in turns if k >= turn and batch.traj_N[k] == batch.traj_N[turn] and reached[k]]
        return 0.9 ** (later[0] - turn) if later else 0.0

    key = [(batch.group_M[batch.traj_N[t]], milestone[t]) for t in turns]
    alike = [[shaped(k) for k in turns if key[k] == key[t]] for t in turns]
    step = [0.0 if milestone[t] < 0 else shaped(t) - np.mean(alike[t]) for t in turns]
    result_A = beacon(batch, gamma=0.9).advantage_A - beacon(batch, omega=0).advantage_A
    assert result_A == pytest.approx(np.array(step)[batch.turn_A], abs=1e-9)


def test_milestones_come_from_info_to_the_batch() -> None:
    """Nonsense between the two milestones changes neither; the wrong key has another name and opens nothing."""
    prompt_format, limits = PromptFormat(), Limits()

    def play(actions: list[str], attempt: int):
        session = LocalSession(registry.make("keydoor-meadow:corridor=2"))
        episode = EpisodeSpec("keydoor-meadow", "train", 0, attempt=attempt)
        actor = ScriptedPolicy(actions).actor(episode)
        return asyncio.run(rollout(session, actor, prompt_format, episode, limits))

    won = play(["go north", "take red", "jump", "go north", "go east", "open"], 0)
    lost = play(["take blue", "go north", "go north", "open"], 1)
    columns = trajectory_columns([won, lost])
    assert (won.success, lost.success) == (True, False)
    assert columns["milestone_N"].tolist() == [0, 0, 1, 1, 1, 1, 0, 2, 2, 2]
    assert columns["reached_N"].tolist() == [0, 1, 0, 0, 0, 1, 1, 0, 0, 0]


def test_an_environment_without_milestones_is_refused() -> None:
    chosen = resolve("beacon", ["env.name=oracle", "eval.split=train", "eval.tasks=1"])
    message = "credit.assigner = 'beacon' compares turns after the same milestone, and oracle names none"
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_spec(chosen, registry.get_spec("oracle"))
