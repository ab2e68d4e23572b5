"""Candidate actions of states with their values under a reference policy, and their file of JSON lines.

A line is one state. docs/credit-bench.md describes the fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentgym.errors import ConfigError
from agentgym.rollouts.trajectory import json_line

SCHEMA = "agentgym.action_values/1"


class PastTurn(BaseModel):
    """A turn before the state: an observation and the action that answered it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    observation: str
    action: str


class ActionValues(BaseModel):
    """A state, its candidate actions, and the value of each under a reference policy."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    schema_: Literal["agentgym.action_values/1"] = Field(default=SCHEMA, alias="schema")
    env: str
    """Environment, with its arguments."""
    task: str = ""
    """Instructions of the agent."""
    reference: str
    """Policy that acts after the candidate action, in words."""
    discount: float = Field(default=1.0, gt=0, le=1)
    state_key: str = ""
    """Name of the underlying state, hidden parts included."""
    group: str = ""
    """States that share a task, for intervals; "" is a state of its own."""
    history: tuple[PastTurn, ...] = ()
    """Turns before the state, the first one first; empty where the state says all."""
    state: str
    """Observation of the agent."""
    actions: tuple[str, ...] = Field(min_length=2)
    q: tuple[float, ...]
    """Value of each action: the expected return after it, its own reward included."""
    probabilities: tuple[float, ...] | None = None
    """Probability of each action under the reference policy; with them an action has an advantage."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Anything else; nothing reads it."""

    @model_validator(mode="after")
    def _numbers_fit(self) -> ActionValues:
        count = len(self.actions)
        if len(set(self.actions)) < count:
            raise ValueError("actions has the same action twice: leave one out")
        if len(self.q) != count:
            raise ValueError(f"q has {len(self.q)} numbers for {count} actions: give one number for each action")
        if self.probabilities is not None:
            if len(self.probabilities) != count:
                raise ValueError(
                    f"probabilities has {len(self.probabilities)} numbers for {count} actions: give one each"
                )
            if min(self.probabilities) < 0 or not math.isclose(sum(self.probabilities), 1, abs_tol=1e-6):
                raise ValueError("probabilities are not at least 0 with sum 1: normalize them, or leave them out")
        return self

    @property
    def value(self) -> float | None:
        """Value of the state under the reference policy; None without `probabilities`."""
        if self.probabilities is None:
            return None
        return sum(p * q for p, q in zip(self.probabilities, self.q, strict=True))

    @property
    def advantages(self) -> tuple[float, ...] | None:
        """Advantage of each action, Q(s, a) - V(s); None without `probabilities`."""
        value = self.value
        return None if value is None else tuple(q - value for q in self.q)


def write_action_values(states: Iterable[ActionValues], path: Path) -> None:
    """Write one line for each state."""
    lines = [json_line(state.model_dump(by_alias=True)) for state in states]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")


def read_action_values(path: Path) -> list[ActionValues]:
    """Return the states of a file. Raises ConfigError, with the number of the line, for what is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}): give a file that `agentgym credit pairs` wrote, or one of its schema"
        ) from error
    states = [_state(line, f"{path}, line {number}") for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not states:
        raise ConfigError(f"{path} holds no state: write one with `agentgym credit pairs ENV --out {path}`")
    return states


def _state(line: str, place: str) -> ActionValues:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place} is not JSON ({error}): write each state as one JSON object on one line") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{place} is no JSON object: write each state as one JSON object on one line")
    if fields.get("schema") != SCHEMA:
        raise ConfigError(
            f"{place} has the schema {fields.get('schema')!r}: only {SCHEMA!r} can be read; convert the file"
        )
    try:
        return ActionValues.model_validate(fields)
    except ValidationError as error:
        found = error.errors()[0]
        field = ".".join(str(part) for part in found["loc"])
        problem = found["msg"].removeprefix("Value error, ")
        known = ", ".join(name for name in (ActionValues.model_fields | {"schema": None}) if name != "schema_")
        names = f" (fields are {known})" if found["type"] in ("extra_forbidden", "missing") else ""
        raise ConfigError(f"{place}: {f'{field}: ' if field else ''}{problem}{names}") from error
