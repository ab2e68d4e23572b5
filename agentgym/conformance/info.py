"""Types of the documented keys of `info`, and what the milestones of an episode must keep to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from agentgym.session import Step

INFO_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "success": ("a bool", lambda value: isinstance(value, bool)),
    "valid_action": ("a bool", lambda value: isinstance(value, bool)),
    "state_key": ("a string", lambda value: isinstance(value, str)),
    "progress": ("a number from 0 to 1", lambda value: type(value) in (int, float) and 0 <= value <= 1),
    "milestone": ("a string or a count", lambda value: isinstance(value, str) or (type(value) is int and value >= 0)),
    "available_actions": ("a list of strings", lambda value: isinstance(value, list) and {*map(type, value)} <= {str}),
    "role": ("0 or 1", lambda value: type(value) is int and value in (0, 1)),
    "rewards": (
        "two numbers",
        lambda value: isinstance(value, list) and len(value) == 2 and {*map(type, value)} <= {int, float},
    ),
}


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
