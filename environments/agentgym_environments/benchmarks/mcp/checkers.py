"""Checkers of a task, as data: what the answer says, which calls were made, what state the server is in."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentgym_environments.backends.answers.graders import LONGEST, last_number, normalize
from agentgym_environments.backends.tool_server.results import ToolResult


class MadeCall(NamedTuple):
    """One call of the agent that the server carried out."""

    name: str
    arguments: dict[str, Any]


class WantedCall(BaseModel):
    """A call by name; arguments that are not named may be anything."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    arguments: dict[str, Any] = {}

    def fits(self, made: MadeCall) -> bool:
        known = made.arguments.keys() >= self.arguments.keys()
        return made.name == self.name and known and all(_fits(made.arguments[k], v) for k, v in self.arguments.items())


class AnswerCheck(BaseModel):
    """The answer, compared in one of four ways."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["answer"]
    equals: str | None = None
    normalized: str | None = None
    """Equal without case, punctuation and articles."""
    number: float | None = None
    """The last number of the answer."""
    regex: str | None = None
    """Pattern of Python that the answer matches from end to end."""

    @model_validator(mode="after")
    def _one_way(self) -> AnswerCheck:
        ways = ("equals", "normalized", "number", "regex")
        if sum(getattr(self, way) is not None for way in ways) != 1:
            raise ValueError(f"an answer is checked by exactly one of {', '.join(ways)}")
        try:
            re.compile(self.regex or "")
        except re.error as error:
            raise ValueError(f"regex is no pattern: {error}") from error
        return self

    def holds(self, answer: str) -> bool:
        answer = answer.strip()[:LONGEST]
        if self.equals is not None:
            return answer == self.equals.strip()
        if self.normalized is not None:
            return normalize(answer) == normalize(self.normalized)
        if self.number is not None:
            return last_number(answer) == Decimal(str(self.number))
        return re.fullmatch(self.regex or "", answer) is not None


class CallsCheck(BaseModel):
    """Calls that were made with success, each by a call of its own; other calls may be among them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["calls"]
    calls: tuple[WantedCall, ...] = Field(min_length=1)
    ordered: bool = False

    def holds(self, made: Sequence[MadeCall]) -> bool:
        if self.ordered:
            rest = iter(made)
            return all(any(wanted.fits(one) for one in rest) for wanted in self.calls)
        taken: dict[int, int] = {}
        return all(self._assign(number, made, taken, set()) for number in range(len(self.calls)))

    def _assign(self, wanted: int, made: Sequence[MadeCall], taken: dict[int, int], tried: set[int]) -> bool:
        """Find a call of its own for a wanted one, moving earlier ones where they have another (bipartite matching)."""
        for place, one in enumerate(made):
            if place in tried or not self.calls[wanted].fits(one):
                continue
            tried.add(place)
            if place not in taken or self._assign(taken[place], made, taken, tried):
                taken[place] = wanted
                return True
        return False


class StateCheck(BaseModel):
    """The result of a tool that the grader calls after the episode."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["state"]
    tool: str
    arguments: dict[str, Any] = {}
    equals: Any = Field()

    def holds(self, result: ToolResult) -> bool:
        return not result.failed and same(result.value, self.equals)


Check = Annotated[AnswerCheck | CallsCheck | StateCheck, Field(discriminator="kind")]


def passes(
    checks: Sequence[AnswerCheck | CallsCheck | StateCheck],
    answer: str,
    made: Sequence[MadeCall],
    ask: Callable[[str, dict[str, Any]], ToolResult],
) -> bool:
    """Return whether all checks hold. `ask` calls a tool of the server, after what needs no call has been checked."""
    for check in checks:
        if isinstance(check, AnswerCheck) and not check.holds(answer):
            return False
        if isinstance(check, CallsCheck) and not check.holds(made):
            return False
    return all(check.holds(ask(check.tool, check.arguments)) for check in checks if isinstance(check, StateCheck))


def same(value: Any, expected: Any) -> bool:
    """Return whether two values of JSON are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(same(value[key], expected[key]) for key in value)
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    return value == expected


def _fits(value: Any, expected: Any) -> bool:
    """Return whether an argument is the wanted one; the server may have read a number from text."""
    if isinstance(value, str) and isinstance(expected, int | float) and not isinstance(expected, bool):
        try:
            return Decimal(value.strip()) == Decimal(str(expected))
        except InvalidOperation:
            return False
    return same(value, expected)
