"""Credit assigners by a recipe's name for them: those of `agentgym_credit`, of entry points, and of one's own files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import agentgym_credit.assigners
from agentgym_credit.batch import Batch
from agentgym_trainers.config.registry import FunctionPart, Registry, needs

__all__ = ["ASSIGNERS", "Assigner", "needs"]


@dataclass(frozen=True)
class Assigner(FunctionPart):
    """function: (batch, *, options) -> Credit."""

    skill: Callable[[Batch, Mapping[str, Any]], float] | None = None
    """(batch, all its options) -> 0 to 1, as of `agentgym_credit.assigners.Entry`."""
    skill_needs: frozenset[str] = frozenset()
    """Columns that `skill` reads and the function does not."""
    option_needs: Callable[[Mapping[str, Any]], frozenset[str]] = lambda options: frozenset()
    """Further needs, which depend on the options."""

    def needs_with(self, options: Mapping[str, Any], *, gate: bool = False) -> frozenset[str]:
        """All needs of the assigner with these options, and of its skill where the credit is gated."""
        return self.needs | self.option_needs(options) | (self.skill_needs if gate else frozenset())


ASSIGNERS = Registry(
    "assigner", Assigner, {name: Assigner(*ours) for name, ours in agentgym_credit.assigners.ASSIGNERS.items()}
)
