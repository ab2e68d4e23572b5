"""Bounds of an assigner's options, as part of their types."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints


@dataclass(frozen=True)
class Within:
    """Least and largest value of an option."""

    low: float
    high: float = math.inf

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """pydantic reads the bounds here, from a dict, so that this package needs no pydantic."""
        most = {} if math.isinf(self.high) else {"le": self.high}
        return {**handler(source), "ge": self.low, **most}


UnitInterval = Annotated[float, Within(0, 1)]


def check_bounds(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise ValueError for an option that is outside the bounds of its type."""
    types = get_type_hints(function, include_extras=True)
    for name, value in options.items():
        for bounds in getattr(types.get(name), "__metadata__", ()):
            if not bounds.low <= value <= bounds.high:
                raise ValueError(f"{name} is {bounds.low} to {bounds.high}, not {value!r}")
