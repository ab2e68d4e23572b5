"""The policy's own hindsight: how much likelier a turn becomes once the policy reads how the attempt ended.

    hindsight_N = mean_j [log π(a_j | history, outcome, a_<j) − log π(a_j | history, a_<j)]     a the turn's tokens

    scored    ... <user> observation                                    <end> <assistant> response
    again     ... <user> observation  Later: ... The task was solved.   <end> <assistant> response

HCAPO (2603.08754) asks the policy the same, by a prompt of its own. The mean over a turn's tokens, and the outcome's
words, are ours: the last observation, and whether the environment called it a success.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from agentgym.rollouts.trajectory import Trajectory
from agentgym_credit.segments import segment_mean
from agentgym_trainers.data.sequences import Row
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.signals.base import ModelDependencies, Signal, SignalContext
from agentgym_trainers.signals.scoring import score_tokens

MAX_OBSERVATION = 400
"""Characters of the last observation that are read again at every turn."""
MARKER = "\u2063observation\u2063"


class HindsightOptions(BaseModel):
    """Log-ratio of a turn's probability once its outcome is known, by two more forwards of the policy (HCAPO)."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Hindsight(Signal):
    """Forwards of the live policy over every turn's prompt, as it was and with the outcome at its end."""

    def __init__(self, options: HindsightOptions, parts: ModelDependencies) -> None:
        self.model, self.budget = parts.model, parts.tokens_per_micro_batch
        self.temperature, self.processes = parts.sampling.temperature, parts.processes
        self.template, self.endings = parts.template, prompt_endings(parts.template)

    async def annotate(self, context: SignalContext) -> dict[str, np.ndarray]:
        turn_A = context.batch.turn_A
        after_A, before_A = (self._logprobs(rows, len(turn_A)) for rows in (self._rows(context), context.rows))
        return {"hindsight_N": segment_mean(after_A - before_A, turn_A)}

    def _logprobs(self, rows: Sequence[Row], size: int) -> np.ndarray:
        return score_tokens(
            self.model, rows, size, budget=self.budget, temperature=self.temperature, processes=self.processes
        )[0]

    def _rows(self, context: SignalContext) -> list[Row]:
        """A row for every turn: its prompt with the outcome, and what was sampled."""
        rows, done = [], 0
        for m, trajectory in enumerate(context.trajectories):
            outcome = np.array(self.template.encode(outcome_text(trajectory)), np.int64)
            for turn in trajectory.turns:
                assert turn.span is not None
                ids = trajectory.branches[turn.span.branch].ids[: turn.span.stop].astype(np.int64)
                at = turn.span.start - ending_length(ids[: turn.span.start].tolist(), self.endings)
                sampled = np.arange(turn.span.stop - turn.span.start)
                place = turn.span.start + len(outcome) + sampled
                rows.append(Row(np.insert(ids, at, outcome), place, done + sampled, m, False))
                done += len(sampled)
        return rows


def outcome_text(trajectory: Trajectory) -> str:
    """Return an attempt's end in words, to be read after an observation."""
    verdict = "solved" if trajectory.success else "not solved"
    return f"\n\nLater: {trajectory.final_observation[:MAX_OBSERVATION]}\nThe task was {verdict}."


def prompt_endings(template: ChatTemplate) -> list[tuple[int, ...]]:
    """Tokens that may follow a prompt's last observation: all after a user's text, or the response's opening alone."""
    messages = [{"role": "user", "content": MARKER}]
    rendered, closed = template.render(messages), template.render(messages, generation=False)
    tails = rendered.rpartition(MARKER)[2], rendered.removeprefix(closed) if rendered.startswith(closed) else ""
    return [template.encode(tail) for tail in tails if tail]


def ending_length(prompt: Sequence[int], endings: Sequence[tuple[int, ...]]) -> int:
    """Number of tokens after the prompt's last observation; 0 where the template ends it in another way."""
    return next((len(end) for end in endings if tuple(prompt[-len(end) :]) == end), 0)
