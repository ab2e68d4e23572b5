"""Shaped rewards: what credit is assigned from. Pure functions of recorded turns, or of a batch's columns.

A shaper's options are the keyword-only parameters of its function. To add one, write the function and add it here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from agentgym.trajectory import Trajectory


def shaped_rewards(trajectory: Trajectory) -> list[float]:
    """One reward a turn: the world's, less the harness's penalty for a reply without an action."""
    return [turn.reward - turn.penalty for turn in trajectory.turns]


@dataclass(frozen=True)
class Shaper:
    function: Callable[..., np.ndarray]
    """(batch, *, options) -> float64[N], the new `reward_N`."""
    needs: frozenset[str] = frozenset()
    """As of an assigner."""

    @property
    def description(self) -> str:
        return (inspect.getdoc(self.function) or "").partition("\n")[0]


SHAPERS: dict[str, Shaper] = {}
