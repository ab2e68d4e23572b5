"""Exact values of actions in a game of hidden information, by a walk through its whole tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym_environments.base.two_player_rules import Rules


@dataclass
class InformationValue:
    """Observation of a role where it decides, and the value of each of its actions there."""

    observation: str
    reach: float = 0.0
    """Probability that chance and the other role lead here."""
    q: dict[str, float] = field(default_factory=dict)


def information_values(
    rules: Rules, roots: Sequence[tuple[float, Any]], policy: Mapping[str, Mapping[str, float]], role: int
) -> dict[str, InformationValue]:
    """Return the value of each action of `role` at all that it may know, if `policy` plays both roles afterwards.

    An action's value is the expected score over the states that look alike to `role`, each weighed by the probability
    that chance (`roots`: probability, state) and the other role lead to it. Places that the other role never leads to
    have no value and are left out.
    """
    found: dict[str, InformationValue] = {}

    def walk(state: Any, reach: float) -> float:
        mover = rules.mover(state)
        if mover is None:
            return rules.scores(state)[role]
        chances = policy[rules.information(state, mover)]
        own = mover == role
        values = {action: walk(rules.play(state, action), reach if own else reach * p) for action, p in chances.items()}
        if own and reach > 0:
            known = rules.information(state, role)
            here = found.setdefault(known, InformationValue(rules.observe(state, role)))
            here.reach += reach
            for action, value in values.items():
                here.q[action] = here.q.get(action, 0.0) + reach * value
        return sum(p * values[action] for action, p in chances.items())

    for probability, state in roots:
        walk(state, probability)
    for here in found.values():
        here.q = {action: value / here.reach for action, value in here.q.items()}
    return found
