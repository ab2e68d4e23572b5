"""The engine protocol: token ids in; token ids and the log-probabilities of the very distribution sampled, out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from agentgym.rollouts.trajectory import ImageSpan
from agentgym_trainers.config.registry import ClassPart


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one response."""

    temperature: float = 1.0
    """Divides the logits; 0 is greedy (its log-probabilities are those at temperature 1)."""
    max_new_tokens: int = 64
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Completion:
    """One reply as it crossed the engine's boundary."""

    ids: list[int]
    """Sampled tokens, the stop token included."""
    logprobs: list[float]
    finish: str
    """"stop" or "length"."""
    versions: list[int]
    """Version of the weights that sampled each token: they may change while a response is under way."""

    @property
    def version(self) -> int:
        """Version of the first token, the oldest."""
        return self.versions[0]


class Conversation(Protocol):
    """A sequence whose key-value cache the engine keeps between calls."""

    async def generate(self, prompt: Sequence[int], sampling: Sampling, images: Sequence[ImageSpan] = ()) -> Completion:
        """Continue `prompt`, the whole sequence so far; the part already in the cache is not computed again. `images`
        are those among its tokens; an engine whose `EngineKind` does not read images is never given any.

        Raises ContextFull when the prompt leaves no room to reply.
        """
        ...

    def close(self) -> None: ...


class Engine(Protocol):
    version: int
    """Version of the weights that are sampled from."""
    max_length: int
    """Tokens of the longest sequence: what the learner must be able to hold."""

    def open(self, rng: np.random.Generator) -> Conversation: ...

    async def refresh(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Sample from these weights from now on. A reply under way goes on with them: its tokens say which sampled
        each, and no keys or values of the old weights are read any more."""
        ...

    async def aclose(self) -> None:
        """Let go of what it holds: threads, connections, processes."""
        ...


@dataclass(frozen=True, slots=True)
class EngineRoom:
    """Capacity that an engine must have, and its seed."""

    max_sequences: int
    max_length: int
    lockstep: bool = False
    """Wait for every open sequence before each forward, so that a run repeats to the bit."""
    seed: int = 0


def no_check(options: Any, head_size: int) -> None:
    """Nothing can be wrong."""


@dataclass(frozen=True)
class EngineKind(ClassPart):
    """A kind of engine: a table [engine] with this `kind`. build: (options, model, tokenizer, folder of the run,
    EngineRoom) -> Engine."""

    repeatable: bool = False
    """True where it can keep `rollout.lockstep`."""
    images: bool = False
    """True where it samples from vision-language models."""
    max_temperature: float = math.inf
    servers: bool = False
    """True where it samples from servers that several processes share: it then has `attach`, `hold` and `release`, as
    `VllmEngine` does, and [scale] may place its servers."""
    check: Callable[[Any, int], None] = no_check
    """Raises MissingDependency or ConfigError where it cannot be started for a model with heads of this size."""
