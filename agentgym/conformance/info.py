"""Rules for the milestones of an episode."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from agentgym.session import Step


def milestone_problem(steps: Sequence[Step]) -> str:
    """Fault in an episode's milestones; "" where there is none."""
    named = [step.info["milestone"] for step in steps if "milestone" in step.info]
    if named and named[0]:
        return f"an episode begins at the milestone {named[0]!r}; before the first is reached it is '' or 0"
    reached = [after for before, after in pairwise(named) if after != before]
    again = [milestone for i, milestone in enumerate(reached) if not milestone or milestone in reached[:i]]
    if again:
        return f"the milestone {again[0]!r} comes back; a milestone that was reached stays reached"
    return ""
