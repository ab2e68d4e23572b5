"""Shaped rewards: what credit is assigned from. Pure functions, chained in the order that a recipe names them.

A shaper takes a Batch and gives its new reward_N; its options are the keyword-only parameters of its function. To add
one, write the function and add it to SHAPERS. The prompt format's penalty is in reward_N before any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import PositiveInt

from agentgym.rollouts.trajectory import Trajectory
from agentgym_credit.batch import Batch
from agentgym_credit.segments import position, remaining
from agentgym_trainers.config.registry import FunctionPart, Registry


class Shaper(FunctionPart):
    """function: (batch, *, options) -> float64[N], the new rewards."""


def shaped_rewards(trajectory: Trajectory) -> list[float]:
    """One reward a turn: the environment's, less the prompt format's penalty for a reply without an action."""
    return [turn.reward - turn.penalty for turn in trajectory.turns]


def spa(batch: Batch, *, alpha: float = 1.0, beta: float = 0.5) -> np.ndarray:
    """A learned head's progress plus grounding, in place of the environment's reward.

    r_t = alpha c_t + beta g_t − p_t; g_t = 1 where the environment executed the action, p_t the prompt format's
    penalty.
    Wang et al. 2025 (SPA-RL, 2505.20732). The head was fitted to Σ_t c_t = R, so adding R again would count it twice;
    only the sum of c over a trajectory is fitted, how it is spread comes from the head's generalization. The last turn
    is a turn like any other, grounding included (the released code weighs turn t of T by T − t − 1). A policy can earn
    what the head overrates: `redistribute` cannot be gamed.
    """
    return alpha * batch.x["progress_c_N"] + beta * batch.x["valid_N"] - batch.x["penalty_N"]


def redistribute(batch: Batch, *, alpha: float = 1.0, gate: bool = False) -> np.ndarray:
    """The environment's return, paid earlier: each turn is advanced what a learned head says that it contributed.

    r_t + alpha c_t, and the last turn pays Σ_k alpha c_k back, so that every trajectory's return stays as it was.
    The residual form of SPA-RL's progress (2505.20732), after return redistribution (Arjona-Medina et al. 2019, RUDDER,
    1806.07857). With γ = 1 what was paid before turn t is a baseline of its return: it changes the variance, not which
    policy is best. Truncated: paid back at the cut. gate: alpha is times the head's skill, the share of outcomes that
    its sums explain, so that a head that has learned nothing yet pays nothing.
    """
    skill_N = batch.x["progress_skill_M"][batch.traj_N] if gate else 1.0
    advance_N = alpha * skill_N * batch.x["progress_c_N"]
    total_M = np.bincount(batch.traj_N, advance_N, minlength=len(batch.group_M))
    return batch.reward_N + advance_N - np.where(batch.last_N, total_M[batch.traj_N], 0.0)


def potential(batch: Batch, *, weight: float = 1.0, gamma: float = 1.0) -> np.ndarray:
    """The environment's own progress as a potential: it changes when reward comes, not which policy is best.

    r_t + weight · (γ Φ(s_{t+1}) − Φ(s_t)), Φ the progress that the environment reports; 0 before the first turn and 0
    after the last one of an episode that the environment ended.
    Ng, Harada and Russell 1999, with the assigner's own γ. Φ(terminal) = 0 takes back what progress gave; Φ(win) = 1
    would double the gradient. Truncated: Φ(s_{H+1}) is what the environment last reported, so that the return of a cut
    episode contains its progress, and a critic that bootstraps (it learns V − Φ) gets V. A turn of which the
    environment reports nothing (NaN) leaves progress where it was.
    """
    after_N = weight * _known(batch.x["progress_N"], batch.traj_N)
    before_N = np.where(position(batch.traj_N) > 0, np.roll(after_N, 1), 0.0)
    ended_N = batch.last_N & ~batch.truncated_M[batch.traj_N]
    return batch.reward_N + gamma * np.where(ended_N, 0.0, after_N) - before_N


def information(batch: Batch, *, weight: float = 1.0) -> np.ndarray:
    """The policy's gain in knowledge of the answer, on top of the reward.

    r_t + weight · (p_{t+1} − p_t), p_t the policy's probability of the answer before turn t (`answer_prob_N`); 0 at the
    last turn, which the outcome judges, and where no answer is known (NaN).
    IGPO (2510.14967), there with answers from the data. The sum over a trajectory is p before its last turn less p
    before its first: what is best changes by so much, in favor of attempts that know the answer before they say it.
    """
    prob_N = batch.x["answer_prob_N"]
    gain_N = np.where(batch.last_N, 0.0, np.nan_to_num(np.roll(prob_N, -1) - prob_N))
    return batch.reward_N + weight * gain_N


def judge(batch: Batch, *, weight: float = 1.0) -> np.ndarray:
    """A judge's score of every turn, weighted, on top of the reward.

    r_t + weight · p_t. More turns earn more: `delta` and `clip` are the versions that filler cannot inflate.
    """
    return batch.reward_N + weight * batch.x["judge_N"]


def clip(batch: Batch, *, eta: float = 0.5, weight: float = 1.0) -> np.ndarray:
    """A judge's score less a margin, never above 0: no turn earns anything by being there.

    r_t + weight · min(p_t − eta, 0). Gao et al. 2024 (2410.15115), "Clip".
    """
    return batch.reward_N + weight * np.minimum(batch.x["judge_N"] - eta, 0.0)


def delta(batch: Batch, *, weight: float = 1.0) -> np.ndarray:
    """The fall of a judge's score from each turn to the next: what is still to come is the turn's own score.

    r_t + weight · (p_t − p_{t+1}) before the last turn but one, p_t at it, 0 at the last.
    Gao et al. 2024 (2410.15115), "Delta": the sum from turn t on is p_t however many turns follow, so it is bounded.
    The last turn's own score counts nowhere: the outcome judges it.
    """
    score_N, left_N = batch.x["judge_N"], remaining(batch.traj_N)
    following_N = np.where(left_N > 1, np.roll(score_N, -1), 0.0)
    return batch.reward_N + weight * np.where(left_N > 0, score_N - following_N, 0.0)


def overlong(
    batch: Batch, *, max_length: PositiveInt = 1024, buffer: PositiveInt = 256, factor: float = 1.0
) -> np.ndarray:
    """A penalty that grows over the last `buffer` tokens of the length allowed, at the trajectory's last turn.

    + factor · clip(−(tokens − (max_length − buffer)) / buffer, −1, 0), tokens those that the policy sampled.
    Yu et al. 2025 (DAPO, 2503.14476), soft overlong punishment.
    """
    tokens_M = np.bincount(batch.traj_A)
    penalty_M = factor * np.clip((max_length - buffer - tokens_M) / buffer, -1.0, 0.0)
    return batch.reward_N + np.where(batch.last_N, penalty_M[batch.traj_N], 0.0)


def tool_bonus(
    batch: Batch,
    *,
    scale: float = 1.0,
    per_call: float = 0.1,
    most: float = 1.0,
    count: Literal["turns", "executed"] = "turns",
) -> np.ndarray:
    """A bonus for acting at all, at the trajectory's last turn; a schedule on `scale` lets it fade.

    + scale · min(most, per_call · n), n the trajectory's turns, or those whose action the environment executed.
    SPEAR (2509.22601), which counts turns for agents and tool calls for mathematics, and lets `scale` go from 1 to 0 as
    half a cosine. It is no potential: while it is there, it changes which policy is best.
    """
    counted_N = np.ones(len(batch.traj_N)) if count == "turns" else batch.x["valid_N"]
    bonus_M = scale * np.minimum(per_call * np.bincount(batch.traj_N, counted_N), most)
    return batch.reward_N + np.where(batch.last_N, bonus_M[batch.traj_N], 0.0)


def _known(progress_N: np.ndarray, traj_N: np.ndarray) -> np.ndarray:
    """Each turn's last known progress in its trajectory; 0 before there is any."""
    rows = np.arange(len(progress_N))
    latest_N = np.maximum.accumulate(np.where(np.isnan(progress_N), -1, rows)) if len(rows) else rows
    return np.where(latest_N >= rows - position(traj_N), progress_N[latest_N], 0.0)


SHAPERS = Registry(
    "shaper",
    Shaper,
    {
        "spa": Shaper(spa, frozenset({"progress_c_N", "valid_N", "penalty_N"})),
        "redistribute": Shaper(redistribute, frozenset({"progress_c_N", "progress_skill_M"})),
        "potential": Shaper(potential, frozenset({"progress_N"})),
        "information": Shaper(information, frozenset({"answer_prob_N"})),
        "judge": Shaper(judge, frozenset({"judge_N"})),
        "clip": Shaper(clip, frozenset({"judge_N"})),
        "delta": Shaper(delta, frozenset({"judge_N"})),
        "overlong": Shaper(overlong),
        "tool_bonus": Shaper(tool_bonus, frozenset({"valid_N"})),
    },
)


def shape_rewards(batch: Batch, shaping: Mapping[str, Mapping[str, Any]]) -> Batch:
    """The batch with shapers applied to its rewards, one after the other. `shaping`: options by the shaper's name."""
    for name, options in shaping.items():
        batch = replace(batch, reward_N=SHAPERS[name].function(batch, **options))
    return batch
