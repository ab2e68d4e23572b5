"""Selectors: which of a step's trajectories are learned from. Pure functions from a Batch to bool[M].

A selector's options are the keyword-only parameters of its function. To add one, write the function and add it here.
Each depends on its batch alone, not on the order of it: equals at the edge of a fraction are all kept.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from agentgym_credit.batch import Batch
from agentgym_credit.segments import at_least, segment_mean, segment_std
from agentgym_trainers.config.registry import FunctionPart, Registry
from agentgym_trainers.data.sequences import trajectory_columns

Fraction = Annotated[float, Field(gt=0, le=1)]
Quantile = Annotated[float, Field(ge=0, le=1)]


def mixed_outcomes(batch: Batch) -> np.ndarray:
    """Groups of which some attempts succeeded and some did not: the others' leave-one-out advantage is 0.

    0 < mean success < 1.
    Yu et al. 2025 (DAPO, 2503.14476) §3.2, dynamic sampling: with `select.tries` the step asks for more groups until it
    has as many as it wants. The tasks that are learned from are then no longer the split's: see `select/discarded`.
    Population: the group's trajectories. K = 1: never kept. Truncated: as the environment calls it. All-equal
    rewards: dropped.
    """
    success_G = segment_mean(batch.x["success_M"], batch.group_M)
    return ((success_G > 0) & (success_G < 1))[batch.group_M]


def accuracy_band(batch: Batch, *, low: float = 0.2, high: float = 0.8) -> np.ndarray:
    """Groups whose share of successes is neither low nor high.

    low ≤ mean success ≤ high.
    Cui et al. 2025 (PRIME, 2502.01456), online prompt filtering. Population: the group's trajectories. K = 1: kept
    only with low = 0 or high = 1. Truncated: as the environment calls it. All-equal rewards: as K = 1.
    """
    success_G = segment_mean(batch.x["success_M"], batch.group_M)
    return (at_least(success_G, low) & at_least(-success_G, -high))[batch.group_M]


def top_std(batch: Batch, *, fraction: Fraction = 0.25) -> np.ndarray:
    """The groups whose returns differ most: `fraction` of them, one at least.

    std R (K − 1 in the denominator) not below that of the ⌈fraction · G⌉-th group.
    Wang et al. 2025 (RAGEN, 2504.20073), StarPO-S: .25; Qin et al. 2025 (SPEAR, 2509.22601): .75. Population: the
    group's trajectories, then the batch's groups. K = 1: its spread is 0. Truncated: what was collected counts.
    All-equal rewards: kept only where fewer groups than the fraction have any spread.
    """
    std_G = segment_std(batch.return_M, batch.group_M, 1)
    present_G = np.unique(batch.group_M)  # a group of failures alone has no trajectory
    return at_least(std_G, _edge(std_G[present_G], fraction))[batch.group_M]


def top_return(batch: Batch, past: np.ndarray, *, quantile: Quantile = 0.9, distinct: bool = False) -> np.ndarray:
    """Trajectories whose return reaches a quantile of all returns so far: filtered imitation.

    R ≥ quantile(past), and R > min(past): where most attempts fail the quantile is the return of failure itself.
    Online filtered BC as in Zhou et al. 2024 (ArCHer, 2402.19446); a quantile that rises is the Improve step of
    Gulcehre et al. 2023 (ReST, 2308.08998). `past`: the returns of every trajectory so far, these included. With
    `distinct` equal replies to one task count once, as in Yuan et al. 2023 (RFT, 2308.01825). Population: the run's
    trajectories. K = 1: the same. Truncated: what was collected counts. All-equal returns so far: nothing is kept.
    """
    floor, edge = (past.min(), np.quantile(past, quantile)) if len(past) else (np.inf, np.inf)
    keep_M = at_least(batch.return_M, edge) & ~at_least(-batch.return_M, -floor)
    if distinct:
        kept = np.flatnonzero(keep_M)
        pairs = np.stack([batch.group_M[kept], batch.x["reply_M"][kept]])
        first = kept[np.unique(pairs, axis=1, return_index=True)[1]]
        keep_M = np.isin(np.arange(len(keep_M)), first)
    return keep_M


def instruction(batch: Batch, *, fraction: Fraction = 0.1) -> np.ndarray:
    """The trajectories that did best by what their task lets expect: `fraction` of them, one at least.

    R − V_inst(task) not below that of the ⌈fraction · M⌉-th trajectory.
    Bai et al. 2024 (DigiRL, 2406.11896): tasks that are already solved, and those that never are, give way to those
    that are just being learned. Population: the batch's trajectories. K = 1: the same. Truncated: what was collected
    counts. All-equal rewards: the tasks of which most was expected are dropped.
    """
    score_M = batch.return_M - batch.x["inst_value_M"]
    return at_least(score_M, _edge(score_M, fraction))


def _edge(score: np.ndarray, fraction: float) -> float:
    """The least score that is among the top `fraction`."""
    if not len(score):
        return np.inf
    count = max(1, int(np.ceil(fraction * len(score) - 1e-9)))
    return float(np.sort(score)[-min(count, len(score))])


class Selector(FunctionPart):
    """function: (batch, *, options) -> bool[M], which trajectories stay. With the need "past" its second argument are
    the returns of every trajectory so far."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("batch", "past") if "past" in self.needs else ("batch",)


SELECTORS = Registry(
    "selector",
    Selector,
    {
        "mixed_outcomes": Selector(mixed_outcomes, frozenset({"groups"})),
        "accuracy_band": Selector(accuracy_band, frozenset({"groups"})),
        "top_std": Selector(top_std, frozenset({"groups"})),
        "top_return": Selector(top_return, frozenset({"past"})),
        "instruction": Selector(instruction, frozenset({"inst_value_M"})),
    },
)


def needs_model_columns(kind: str) -> bool:
    """True where the selector reads columns of models, not only trajectories."""
    return not SELECTORS[kind].needs <= {"groups", "past", *trajectory_columns([])}
