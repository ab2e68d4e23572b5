"""Every assigner makes a policy of one logit a state win OM, within seconds; known wrong credit does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from agentgym_trainers.batch import Batch, Credit
from agentgym_trainers.credit import ASSIGNERS, normalise
from agentgym_trainers.credit.gae import turn_gae
from agentgym_trainers.credit.group import reinforce
from agentgym_trainers.credit.segments import reverse_scan
from agentgym_trainers.testing import oracle_batch, oracle_gradient_M, oracle_trajectories

GROUP_SIZE, UPDATES, STEP, CRITIC_STEP = 8, 150, 2.0, 0.1
SEEDS = range(10)


def learn(assign: Callable[[Batch], Credit], seed: int) -> float:
    """Probability of winning after training. The critic is a table of V(s) and of V after the decision, TD(.1)."""
    rng = np.random.default_rng(seed)
    logits, value, value_after = np.zeros(5), np.zeros(5), np.zeros((5, 2))
    for _ in range(UPDATES):
        p_first = 1 / (1 + np.exp(-logits))
        every = oracle_trajectories(p_first)
        chosen = rng.choice(len(every), size=GROUP_SIZE, p=[t.probability for t in every])
        batch = oracle_batch([every[i] for i in chosen], tokens=2, value=value, value_after=value_after)
        credit = assign(batch)
        logits += STEP * oracle_gradient_M(batch, credit, p_first).mean(axis=0)
        actions = batch.x["action_N"].astype(int)
        if "value_A" in credit.targets:
            before_N, after_N = credit.targets["value_A"][0::2], credit.targets["value_A"][1::2]
            for state, action, target in zip(batch.anchor_N, actions, after_N):
                value_after[state, action] += CRITIC_STEP * (target - value_after[state, action])
        else:
            before_N = credit.targets.get("value_N", value[batch.anchor_N])
        for state, target in zip(batch.anchor_N, before_N):
            value[state] += CRITIC_STEP * (target - value[state])
    return sum(t.probability * t.reward for t in oracle_trajectories(1 / (1 + np.exp(-logits))))


def progress_N(batch: Batch) -> np.ndarray:
    """SPA-RL's progress c_t = V(s_{t+1}) − V(s_t), with R for V at the end: it sums to R − V(s_0)."""
    value_N = batch.x["value_N"]
    return np.where(batch.last_N, batch.reward_N, np.roll(value_N, -1)) - value_N


def spa(batch: Batch, *, released: bool) -> Credit:
    """Progress as reward-to-go; `released` multiplies turn t of T by T − t − 1, so the last turn counts nothing."""
    left_N = reverse_scan(np.ones(len(batch.traj_N)), batch.traj_N, 1.0) - 1
    reward_N = progress_N(batch) * (left_N if released else 1)
    credit = reinforce(replace(batch, reward_N=reward_N), reward_to_go=True)
    return Credit(credit.advantage_A, {"value_N": batch.x["value_N"] + progress_N(batch)})


def turn_gae_at_end_of_turn(batch: Batch) -> Credit:
    """V read before the last token of the turn, after the decision: nearly Q(s, a)."""
    credit = turn_gae(batch.with_columns(value_N=batch.x["value_A"][batch.last_A]), gamma=1.0, lam=0.95)
    return Credit(credit.advantage_A, {"value_A": credit.targets["value_N"][batch.turn_A]})


@pytest.mark.parametrize("name", ASSIGNERS)
def test_assigner_learns_the_oracle_mdp(name: str) -> None:
    success = [learn(ASSIGNERS[name].function, seed) for seed in SEEDS]
    assert min(success) >= 0.95, success


def test_normalised_credit_learns_the_oracle_mdp() -> None:
    def whitened(batch: Batch) -> Credit:
        return normalise(ASSIGNERS["dr_grpo"].function(batch), batch, population="token")

    success = [learn(whitened, seed) for seed in SEEDS]
    assert min(success) >= 0.95, success


def test_progress_as_published_learns_the_oracle_mdp() -> None:
    success = [learn(partial(spa, released=False), seed) for seed in SEEDS]
    assert min(success) >= 0.95, success


@pytest.mark.parametrize(
    ("wrong", "at_most"), [(partial(spa, released=True), 0.6), (turn_gae_at_end_of_turn, 0.6)], ids=["spa", "turn_end"]
)
def test_wrong_credit_fails_the_gate(wrong: Callable[[Batch], Credit], at_most: float) -> None:
    success = [learn(wrong, seed) for seed in SEEDS]
    assert max(success) < 0.95, success
    assert np.mean(success) < at_most, success
