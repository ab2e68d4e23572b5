"""Exact probabilities of a policy's actions at a decision point that nobody has to play to.

With `agentgym_environments.games.exploitability` it tells how much a trained policy can be beaten by:

    tree = kuhn_poker()
    told = action_probabilities(learner, ChatTemplate(tokenizer), spec, prompt_format, views(tree).values())
    exploitability(tree, normalized(told))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.trajectory import Group, StopReason, Trajectory, Turn
from agentgym.spec import EnvSpec
from agentgym_trainers.data.sequences import collate
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.rollout.tokens import ChatTemplate, tokenize


class DecisionPoint(Protocol):
    """A decision point; `games.exploitability.InformationState` is one."""

    @property
    def information(self) -> str:
        """Its name."""
        ...

    @property
    def past(self) -> Sequence[tuple[str, str]]:
        """(observation, action) of the turns before, as if each reply had been the action and no more."""
        ...

    @property
    def observation(self) -> str: ...

    @property
    def legal(self) -> Sequence[str]: ...


def action_probabilities(
    learner: Learner,
    template: ChatTemplate,
    spec: EnvSpec,
    prompt_format: PromptFormat,
    places: Iterable[DecisionPoint],
) -> dict[str, dict[str, float]]:
    """place -> action -> probability that the reply is that action as the prompt format writes it, in its usual tokens,
    at the learner's temperature. What a place's probabilities lack to 1 is said in other words, or means nothing."""
    queries = [(place, action) for place in places for action in place.legal]
    transcripts = []
    for place, action in queries:
        history = [*place.past, (place.observation, action)]
        turns = [
            Turn(i, observation, prompt_format.render(what, spec), what, 0.0)
            for i, (observation, what) in enumerate(history)
        ]
        played = Trajectory(spec.id, "", 0, 0, 0, tuple(turns), StopReason.TERMINATED)
        transcripts.append(tokenize(played, spec, prompt_format, template))
    batch, rows, _ = collate([Group((trajectory,)) for trajectory in transcripts])
    logprob_N = np.bincount(batch.turn_A, learner.logprobs(batch, rows))
    found: dict[str, dict[str, float]] = {}
    for (place, action), logprob in zip(queries, logprob_N[batch.last_N], strict=True):
        found.setdefault(place.information, {})[action] = float(np.exp(logprob))
    return found


def normalized(probabilities: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The probabilities given that the reply is one of the legal actions."""
    sums = {place: sum(chances.values()) for place, chances in probabilities.items()}
    return {
        place: {action: p / sums[place] for action, p in chances.items()} for place, chances in probabilities.items()
    }
