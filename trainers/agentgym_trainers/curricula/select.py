"""Selectors: which of a step's trajectories are learned from. Pure functions from a Batch to bool[M].

A selector's options are the keyword-only parameters of its function. To add one, write the function and add it here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Selector:
    function: Callable[..., np.ndarray]
    needs: frozenset[str] = frozenset()
    """As of an assigner."""

    @property
    def description(self) -> str:
        return (inspect.getdoc(self.function) or "").partition("\n")[0]


SELECTORS: dict[str, Selector] = {}
