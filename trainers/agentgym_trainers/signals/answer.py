"""The policy's own probability of a task's right answer, before each of an attempt's turns.

    answer_prob_N = exp(mean_j log π(y_j | history before turn t, y_<j))       y the answer's tokens
    answer_conf_N = exp(−mean_j H(π(· | history before turn t, y_<j)))         NaN where no answer is known

IGPO (2510.14967) and SPAE (2601.03823) probe so, by answers that come with a data set. Here the answer to a task is the
last response of an attempt that succeeded at it, in this step or before: no environment has to give it away, and a task
that was never solved has none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from agentgym.rollouts.trajectory import Trajectory
from agentgym_trainers.data.sequences import Row
from agentgym_trainers.signals.base import ModelDependencies, Signal, SignalContext
from agentgym_trainers.signals.scoring import score_tokens


class AnswerOptions(BaseModel):
    """The policy's own probability of the answer that solved a task, before every turn (IGPO, SPAE)."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Answer(Signal):
    """Answers by task, and forwards of the live policy over every turn's prompt with the answer after it."""

    def __init__(self, options: AnswerOptions, parts: ModelDependencies) -> None:
        self.model, self.budget = parts.model, parts.tokens_per_micro_batch
        self.temperature, self.processes = parts.sampling.temperature, parts.processes
        self.answers: dict[str, list[int]] = {}

    async def annotate(self, context: SignalContext) -> dict[str, np.ndarray]:
        self._remember(context)
        rows, turn_R = [], []
        size, n = 0, 0
        for m, trajectory in enumerate(context.trajectories):
            answer = self.answers.get(_name(trajectory), [])
            for turn in trajectory.turns:
                if answer and turn.span is not None:
                    prompt = trajectory.branches[turn.span.branch].ids[: turn.span.start]
                    at = len(prompt) + np.arange(len(answer))
                    ids = np.concatenate([prompt.astype(np.int64), np.array(answer, np.int64)])
                    rows.append(Row(ids, at, size + np.arange(len(answer)), m, False))
                    turn_R.append(n)
                    size += len(answer)
                n += 1
        turn_A = np.repeat(np.array(turn_R, np.int64), [len(row.action_at) for row in rows])
        logprob_A, entropy_A = score_tokens(
            self.model, rows, size, budget=self.budget, temperature=self.temperature, processes=self.processes
        )
        count_N = np.bincount(turn_A, minlength=n).astype(np.float64)
        count_N[count_N == 0] = np.nan
        return {
            "answer_prob_N": np.exp(np.bincount(turn_A, logprob_A, minlength=n) / count_N),
            "answer_conf_N": np.exp(-np.bincount(turn_A, entropy_A, minlength=n) / count_N),
        }

    async def fit(self, context: SignalContext) -> dict[str, float]:
        return {"tasks": float(len(self.answers))}

    def state_dict(self) -> dict[str, Any]:
        return {"answers": dict(self.answers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.answers = dict(state["answers"])

    def _remember(self, context: SignalContext) -> None:
        """The newest success at each task answers it."""
        for trajectory in context.trajectories:
            span = trajectory.turns[-1].span if trajectory.turns else None
            if trajectory.success and span is not None:
                self.answers[_name(trajectory)] = trajectory.branches[span.branch].ids[span.start : span.stop].tolist()


def _name(trajectory: Trajectory) -> str:
    return f"{trajectory.env} {trajectory.split} {trajectory.task}"
