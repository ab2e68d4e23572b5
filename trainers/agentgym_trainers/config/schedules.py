"""Schedules: an option as a function of the step. No state: a resumed run has what an uninterrupted one would have.

[schedules]
"env.max_turns" = {kind = "stages", values = [10, 20, 30], every = 100}

Steps count from 0. Held-out evaluation has the recipe's own options, whatever the stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Number = int | float
"""Whole numbers stay whole: a horizon is no 10.0."""


class _Schedule(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def at(self, step: int) -> Number:
        raise NotImplementedError


class Stages(_Schedule):
    """Constant for `every` steps at a time: values[min(⌊step / every⌋, last)]. ScalingInter-RL (2509.08755)."""

    kind: Literal["stages"] = "stages"
    values: tuple[Number, ...] = Field(min_length=1)
    every: int = Field(default=100, gt=0)

    def at(self, step: int) -> Number:
        return self.values[min(step // self.every, len(self.values) - 1)]


class Linear(_Schedule):
    """A straight line from `start` to `end` over `steps` steps, `begin` steps in; constant before and after."""

    kind: Literal["linear"] = "linear"
    start: float
    end: float
    steps: int = Field(gt=0)
    begin: int = Field(default=0, ge=0)

    def at(self, step: int) -> float:
        done = min(max(step - self.begin, 0), self.steps)
        return self.start + (self.end - self.start) * done / self.steps  # divided last: whole numbers stay whole


class Cosine(_Schedule):
    """start + (end − start) (1 − cos(π step / steps)) / 2, then `end`: SPEAR's weights (2509.22601)."""

    kind: Literal["cosine"] = "cosine"
    start: float
    end: float
    steps: int = Field(gt=0)

    def at(self, step: int) -> float:
        return self.start + (self.end - self.start) * (1 - math.cos(math.pi * _share(step, self.steps))) / 2


class EpoPhases(_Schedule):
    """`scale` times EPO's weight of the entropy penalty, as released (2509.22576).

    1 − .2 (1 − e^{−2p}) up to the middle of the run, the middle step included, .8 e^{−3p} after it, p the part of that
    half which is done. It is .827 at the middle, goes on from .8 and ends at .04, not 0.
    """

    kind: Literal["epo"] = "epo"
    steps: int = Field(default=150, gt=1)
    """Steps of the whole run."""
    scale: float = 1.0

    def at(self, step: int) -> float:
        half = self.steps // 2
        if step <= half:
            return self.scale * (1 - 0.2 * (1 - math.exp(-2 * step / half)))
        return self.scale * 0.8 * math.exp(-3 * _share(step - half, self.steps - half))


ScheduleOptions = Annotated[Stages | Linear | Cosine | EpoPhases, Field(discriminator="kind")]
"""A schedule as a recipe writes it: `kind`, and that kind's own options."""


LIVE = ("loss.", "credit.", "select.", "shaping.", "correct.", "replay.")
LIVE_OPTIONS = frozenset(
    {"env.max_turns", "rollout.groups", "rollout.group_size", "optim.lr", "optim.epochs", "optim.minibatches"}
)
"""Options that are read anew in every step, and so may be scheduled; all else is built once."""
BUILT_ONCE = frozenset({"replay.history"})
"""Options that are not, among the sections of `LIVE`."""


def applied(tree: dict[str, Any], schedules: Mapping[str, Any], step: int) -> dict[str, Any]:
    """`tree`, a dumped configuration, with every scheduled option as it is in this step. Raises ValueError."""
    for path, schedule in schedules.items():
        *sections, last = path.split(".")
        table: Any = tree
        for section in sections:
            table = table.get(section) if isinstance(table, dict) else None
        if not isinstance(table, dict) or last not in table:
            raise ValueError(f"[schedules] there is no option {path!r} in this recipe")
        if path in BUILT_ONCE or not (path.startswith(LIVE) or path in LIVE_OPTIONS):
            raise ValueError(
                f"[schedules] {path!r} is read only when a run begins; options of {', '.join(p[:-1] for p in LIVE)} "
                f"and {', '.join(sorted(LIVE_OPTIONS))} can change"
            )
        if isinstance(table[last], (str, bool, dict, list, tuple)):
            raise ValueError(f"[schedules] {path!r} is {table[last]!r}, and that is no number")
        table[last] = schedule.at(step)
    return tree


def steps_to_validate(schedules: Iterable[Any], steps: int) -> list[int]:
    """Steps at which every value that makes a difference for an option's bounds and type is seen."""
    every = list(schedules)
    stages = {i * s.every for s in every if isinstance(s, Stages) for i in range(len(s.values))}
    # A line between whole numbers whose first step is whole is whole at every step.
    lines = {s.begin + 1 for s in every if isinstance(s, Linear) and s.begin < steps}
    return sorted({0, 1, steps // 2, steps} | stages | lines) if every else []


def _share(step: float, steps: float) -> float:
    return min(max(step / steps, 0.0), 1.0)
