"""Credit assigners: pure functions from a Batch to a Credit, by the name that a recipe uses.

An assigner's options are the keyword-only parameters of its function. To add one, write the function and add it here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from agentgym_trainers.batch import Credit
from agentgym_trainers.credit.gae import bilevel_gae, token_gae, turn_gae
from agentgym_trainers.credit.gigpo import gigpo
from agentgym_trainers.credit.group import dr_grpo, grpo, reinforce, rloo
from agentgym_trainers.credit.normalise import normalise

__all__ = ["ASSIGNERS", "Assigner", "normalise"]


@dataclass(frozen=True)
class Assigner:
    function: Callable[..., Credit]
    needs: frozenset[str] = frozenset()
    """What must be there: a column of `Batch.x` ("bootstrap_M" only if a trajectory is truncated), "groups" of two or
    more trajectories, "anchors" that name states."""

    @property
    def description(self) -> str:
        return (inspect.getdoc(self.function) or "").partition("\n")[0]


ASSIGNERS: dict[str, Assigner] = {
    "reinforce": Assigner(reinforce),
    "rloo": Assigner(rloo, frozenset({"groups"})),
    "grpo": Assigner(grpo, frozenset({"groups"})),
    "dr_grpo": Assigner(dr_grpo, frozenset({"groups"})),
    "gigpo": Assigner(gigpo, frozenset({"groups", "anchors"})),
    "token_gae": Assigner(token_gae, frozenset({"value_A", "bootstrap_M"})),
    "turn_gae": Assigner(turn_gae, frozenset({"value_N", "bootstrap_M"})),
    "bilevel_gae": Assigner(bilevel_gae, frozenset({"value_A", "bootstrap_M"})),
}
