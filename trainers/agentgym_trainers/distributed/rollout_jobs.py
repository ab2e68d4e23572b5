"""Jobs of rollout workers: what they are told to play, and by which weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import EpisodePrefix, Limits
from agentgym_trainers.rollout.monte_carlo import BranchJob


@dataclass(frozen=True)
class RolloutJob:
    """Episodes to play, with everything that decides them."""

    salt: tuple[int, ...]
    prompt_format: PromptFormat
    limits: Limits
    concurrency: int
    """Episodes at once, of this worker."""
    retries: int


@dataclass(frozen=True)
class Continuation:
    """An episode to go on with from its middle, for a signal."""

    episode: EpisodeSpec
    past: EpisodePrefix
    job: BranchJob
    """Its transcript has no template: every worker has its own."""


@dataclass(frozen=True)
class ReplyState:
    """A state to reply in, for a signal."""

    prompt: Sequence[int]
    seed: int
    count: int
    """Replies."""


@dataclass(frozen=True)
class Weights:
    """Weights to sample from."""

    version: int = -1
    reference: tuple[Any, ...] = ()
    """A reference in a tuple: by itself Ray would fetch it for every job, needed or not. vLLM's servers have theirs
    already."""
