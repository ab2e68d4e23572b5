"""Goals: the changes that a task wants of the database. Nothing else may change.

A goal matches one changed row. Success is a one-to-one match of goals and changed rows: a goal without a row is work
left undone, a row without a goal is an unwanted side effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentgym_environments.synthetic.tools.database import Change


@dataclass(frozen=True)
class Anything:
    """Any value: a subject line, a reference nobody asked for."""


@dataclass(frozen=True)
class Says:
    """A text that holds every fact, and is no longer than needed: nobody succeeds by pasting all he has seen."""

    facts: tuple[str | int | float, ...]
    """A number is found however it is written ("12.5", "12.50", "1,012.50"); a text whatever its case and spacing."""
    longest: int = 600
    """Characters."""


ANY = Anything()


@dataclass(frozen=True)
class StateGoal:
    """One row that should change."""

    table: str
    kind: Literal["insert", "update", "delete"]
    values: Mapping[str, Any] = field(default_factory=dict)
    """insert: every column but `id`. update: exactly the columns that change. Unused by delete. A value may be a
    Says, or ANY."""
    id: int | None = None
    """None for an insert."""

    def met_by(self, change: Change) -> bool:
        if (change.table, change.kind) != (self.table, self.kind) or self.id not in (None, change.id):
            return False
        if self.kind == "delete":
            return True
        found = {name: value for name, value in change.values.items() if name != "id"}
        return found.keys() == self.values.keys() and all(fits(self.values[name], found[name]) for name in found)


def fits(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, Anything):
        return True
    if isinstance(wanted, Says):
        return says(found, wanted)
    if isinstance(wanted, str) and isinstance(found, str):
        return found.strip() == wanted.strip()  # a line break at the end of a note is no other note
    return found == wanted


def says(text: Any, wanted: Says) -> bool:
    """Return whether the text holds every fact."""
    if not isinstance(text, str) or len(text) > wanted.longest:
        return False
    plain, numbers = " ".join(text.casefold().split()), numbers_in(text)
    return all(
        " ".join(fact.casefold().split()) in plain if isinstance(fact, str) else round(float(fact), 2) in numbers
        for fact in wanted.facts
    )


def numbers_in(text: str) -> list[float]:
    """Every number of a text: "paid 1,012.50 on 3 May" gives 1012.5 and 3."""
    found = re.findall(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,15}(?:\.\d+)?", text)
    return [round(float(number.replace(",", "")), 2) for number in found]


def match(goals: Sequence[StateGoal], found: Sequence[Change]) -> dict[int, int]:
    """Match as many goals as can be met at once: index of goal -> index of change (augmenting paths)."""
    owner: dict[int, int] = {}

    def place(goal: int, tried_changes: set[int]) -> bool:
        for number, change in enumerate(found):
            if number not in tried_changes and goals[goal].met_by(change):
                tried_changes.add(number)
                if number not in owner or place(owner[number], tried_changes):
                    owner[number] = goal
                    return True
        return False

    for goal in range(len(goals)):
        place(goal, set())
    return {goal: number for number, goal in owner.items()}
