"""Bounds of an assigner's options, as part of their types, and the check of options."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import numpy as np


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


def check_options(name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise ValueError for an option that `function` does not have, or a value that the option's type excludes."""
    own, types = function.__kwdefaults__ or {}, get_type_hints(function, include_extras=True)
    for option, value in options.items():
        if option not in own:
            raise ValueError(f"{name} has no option {option!r}; it has {', '.join(own) or 'none'}")
        check_value(option, types[option], value)


def check_value(option: str, kind: Any, value: Any) -> None:
    """Raise ValueError unless `value` is of the type `kind`: a Literal, bool, or a number, perhaps with bounds."""
    choices, bounds = get_args(kind), getattr(kind, "__metadata__", ())
    number = choices[0] if bounds else kind
    if get_origin(kind) is Literal:
        if not (isinstance(value, str) and value in choices):
            raise ValueError(f"{option} is one of {', '.join(map(repr, choices))}, not {value!r}")
    elif kind is bool:
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{option} is True or False, not {value!r}")
    elif isinstance(value, bool | np.bool_) or not isinstance(value, Integral if number is int else Real):
        raise ValueError(f"{option} is {'an integer' if number is int else 'a number'}, not {value!r}")
    else:
        for limits in bounds:
            if not limits.low <= value <= limits.high:
                most = "or more" if math.isinf(limits.high) else f"to {limits.high}"
                raise ValueError(f"{option} is {limits.low} {most}, not {value!r}")
        if not math.isfinite(value):
            raise ValueError(f"{option} is a finite number, not {value!r}")
