"""Log-probabilities of candidate actions under a checkpoint: the signal that needs no training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agentgym import registry
from agentgym.evaluation.action_values import ActionValues
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym_trainers.config.sections import OptimOptions
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.load import checkpoint_engine
from agentgym_trainers.rollout.queries import action_probabilities

ROW = "log-probability"


@dataclass(frozen=True)
class StatePoint:
    """A state of a file as a decision point."""

    information: str
    past: tuple[tuple[str, str], ...]
    observation: str
    legal: tuple[str, ...]


def policy_scores(path: Path, states: Sequence[ActionValues]) -> list[np.ndarray]:
    """Return log π(action | state) of each action, as the run's prompt format writes it.

    Raises CheckpointError for what is no checkpoint, UnknownEnvironment for a file of an environment that is not here.
    """
    engine, template, config = checkpoint_engine(path, max_sequences=1)
    prompt_format = config.prompt_format if config is not None else PromptFormat()
    temperature = config.rollout.temperature if config is not None else 1.0
    learner = Learner(engine.model, OptimOptions(), temperature=temperature)
    found: dict[str, dict[str, float]] = {}
    for env in sorted({state.env for state in states}):
        points = [
            StatePoint(
                str(number),
                tuple((turn.observation, turn.action) for turn in state.history),
                state.state,
                state.actions,
            )
            for number, state in enumerate(states)
            if state.env == env
        ]
        found |= action_probabilities(learner, template, registry.get_spec(env), prompt_format, points)
    return [
        np.log(np.maximum([found[str(number)][action] for action in state.actions], 1e-300))
        for number, state in enumerate(states)
    ]
