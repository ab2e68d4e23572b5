"""The policy's own uncertainty at each turn: the entropy of its distributions over the turn's tokens."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict

from agentgym_credit.segments import segment_mean
from agentgym_trainers.signals.base import ModelDependencies, Signal, SignalContext
from agentgym_trainers.signals.scoring import score_tokens


class UncertaintyOptions(BaseModel):
    """The entropy of the policy at every turn, by one more forward of it (CARL)."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Uncertainty(Signal):
    """entropy_N, the mean over the turn's tokens. It is of all that could have been sampled, not of what was: choosing
    turns by it leaves the expected gradient at those turns as it is, where choosing by surprise would not."""

    def __init__(self, options: UncertaintyOptions, parts: ModelDependencies) -> None:
        self.model, self.budget = parts.model, parts.tokens_per_micro_batch
        self.temperature, self.processes = parts.sampling.temperature, parts.processes

    async def annotate(self, context: SignalContext) -> dict[str, np.ndarray]:
        size = len(context.batch.turn_A)
        _, entropy_A = score_tokens(
            self.model, context.rows, size, budget=self.budget, temperature=self.temperature, processes=self.processes
        )
        return {"entropy_N": segment_mean(entropy_A, context.batch.turn_A)}
