"""Self-imitation: what went well is learned from once more (SPEAR, Qin et al. 2025, 2509.22601).

    remember   every group's mean return enters a history; its median, P50, is how well the policy does of late
    add        attempts of positive advantage are kept, with the log-probabilities they were sampled with
    draw       once attempts with R > P50 outnumber trigger · size: those with Ã = R − P50 ≥ 0, a power of two of them
               drawn at random, and the buffer is empty again

What is drawn is one optimizer batch of its own. Returns are the environment's, before shaping: a bonus that fades would
drag the median behind it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from agentgym.rollouts.trajectory import Group, Trajectory, json_line
from agentgym_credit.batch import Batch, Credit
from agentgym_credit.segments import segment_mean
from agentgym_trainers.data.reward_shaping import shaped_rewards
from agentgym_trainers.data.sequences import is_demonstration


class BufferOptions(BaseModel):
    """The replay buffer: its size, and which episodes are replayed when."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(default=32, gt=0)
    """Attempts of an update, at most; the published runs have 2048 turns, or 32 attempts at mathematics."""
    trigger: float = Field(default=1.5, ge=0)
    """An update comes when this many times `size` attempts are better than the median."""
    max_age: int = Field(default=5, ge=0)
    """Steps after which an attempt is forgotten."""
    history: int = Field(default=10240, gt=0)
    """Groups whose mean is remembered."""
    weight: float = Field(default=1.0, ge=0)
    """Weight of the update's loss; at 0 nothing is drawn. The published runs warm it up: [schedules]
    "replay.weight"."""


@dataclass(frozen=True, slots=True)
class ReplayEntry:
    """One attempt in the buffer."""

    trajectory: Trajectory
    total: float
    """Its return, unshaped."""
    step: int


class ReplayBuffer:
    def __init__(self, options: BufferOptions) -> None:
        self.options = options
        self.kept: list[ReplayEntry] = []
        self.means: deque[float] = deque(maxlen=options.history)

    @property
    def median(self) -> float:
        """P50, what `credit.outcome.recalibrated` compares returns with; NaN before there is a history."""
        return float(np.median(self.means)) if self.means else float("nan")

    def remember(self, groups: Sequence[Group]) -> None:
        """Every group of the step, whether it is learned from or not; failures do not count."""
        for group in groups:
            totals = [total_return(t) for t in group.without_failures().trajectories if not is_demonstration(t)]
            if totals:
                self.means.append(float(np.mean(totals)))

    def add(
        self,
        batch: Batch,
        credit: Credit,
        trajectories: Sequence[Trajectory],
        step: int,
        options: BufferOptions | None = None,
    ) -> None:
        """Keep the batch's attempts whose mean advantage over their tokens is positive, and forget old ones. `options`
        are this step's, where a schedule changes them."""
        max_age = (options or self.options).max_age
        advantage_M = segment_mean(credit.advantage_A, batch.traj_A)
        good = [trajectories[m] for m in np.flatnonzero(advantage_M > 0).tolist()]
        self.kept = [item for item in self.kept if step - item.step <= max_age]
        self.kept += [ReplayEntry(t, total_return(t), step) for t in good if not is_demonstration(t)]

    def draw(self, rng: np.random.Generator, options: BufferOptions | None = None) -> list[Trajectory]:
        """An update's attempts, and the buffer emptied; none where there are too few, or they would weigh nothing.
        `options` are this step's, where a schedule changes them."""
        options = options or self.options
        gain = np.array([item.total for item in self.kept]) - self.median
        if not options.weight or (gain > 0).sum() <= options.trigger * options.size:
            return []
        usable = np.flatnonzero(gain >= 0)
        count = 2 ** int(np.log2(min(len(usable), options.size)))
        chosen = np.sort(rng.choice(usable, count, replace=False))
        drawn = [self.kept[i].trajectory for i in chosen.tolist()]
        self.kept = []
        return drawn

    def state_dict(self) -> dict[str, Any]:
        kept = [(json_line(item.trajectory.to_json()), item.total, item.step) for item in self.kept]
        return {"kept": kept, "means": list(self.means)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = [
            ReplayEntry(Trajectory.from_json(json.loads(line)), total, step) for line, total, step in state["kept"]
        ]
        self.means = deque(state["means"], maxlen=self.options.history)


def total_return(trajectory: Trajectory) -> float:
    return float(sum(shaped_rewards(trajectory)))
