"""Signals whose models are in the learner processes, beside the policy: the loop uses what is here in their place.

A call gives every process the same context through Ray's object store, once; each forwards its rows, and the process of
rank 0 answers. Random numbers that were drawn there are taken as drawn here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel

from agentgym_credit.batch import Batch
from agentgym_trainers.data.sequences import Row
from agentgym_trainers.distributed.learner_group import LearnerGroup, generators_of
from agentgym_trainers.signals import SIGNALS
from agentgym_trainers.signals.archer.critic import CriticExamples, Over
from agentgym_trainers.signals.archer.transitions import Transition
from agentgym_trainers.signals.base import Signal, SignalContext, SignalDependencies


def build_signal(name: str, options: BaseModel, parts: SignalDependencies, learners: LearnerGroup | None) -> Signal:
    """The signal of a table [signals.NAME]. With `learners` its models, if it has any, are theirs."""
    kind = SIGNALS[name]
    if learners is None or kind.learned is None:
        return kind.build(options, parts)
    if kind.around is None:
        return RemoteSignal(learners, name)
    return kind.around(options, parts, RemoteCritic(learners, name))


class RemoteModels:
    """Base of what stands for a part of the learner processes."""

    def __init__(self, learners: LearnerGroup, name: str) -> None:
        self.learners, self.name = learners, name

    def call(self, method: str, *arguments: Any) -> Any:
        """The answer of rank 0. Raises LearnerLost."""
        answer, states = self.learners.call_part(self.name, method, *arguments)
        for rng, state in zip(generators_of(arguments), states, strict=True):
            rng.bit_generator.state = state
        return answer

    def state_dict(self) -> dict[str, Any]:
        return self.call("state_dict")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.call("load_state_dict", state)


class RemoteSignal(RemoteModels, Signal):
    """A signal that is in every learner process."""

    def __init__(self, learners: LearnerGroup, name: str) -> None:
        super().__init__(learners, name)
        self.fit_first, self.warmup = learners.attributes(name, "fit_first", "warmup")

    async def annotate(self, context: SignalContext) -> dict[str, np.ndarray]:
        return self.call("annotate", context)

    async def fit(self, context: SignalContext) -> dict[str, float]:
        return self.call("fit", context)

    async def training_batch(self, context: SignalContext) -> tuple[Batch, list[Row]] | None:
        return self.call("training_batch", context)


class RemoteCritic(RemoteModels):
    """A `TwinCritic` that is in every learner process."""

    def learn(self, pool: CriticExamples, rng: np.random.Generator, warm: bool = False) -> dict[str, float]:
        return self.call("learn", pool, rng, warm)

    def values(self, turns: Sequence[Transition], over: Over = "min") -> np.ndarray:
        return self.call("values", turns, over)
