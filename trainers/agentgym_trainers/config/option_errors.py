"""Options as sentences: what a part may be told, and what is wrong with what it was told."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

M = TypeVar("M", bound=BaseModel)


def checked_options(name: str, function: Any, given: dict[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """`given` as the keyword-only parameters of a part's function. Raises ValueError."""
    model = _options_model(name, function)
    try:
        return model.model_validate(given).model_dump()
    except ValidationError as error:
        options = [*known, *model.model_fields]
        raise ValueError("; ".join(sentence(detail, options) for detail in error.errors())) from error


@lru_cache(maxsize=256)
def _options_model(name: str, function: Any) -> type[BaseModel]:
    """A model of the keyword-only parameters of a function: made once, as making one takes a millisecond or more."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    fields: dict[str, Any] = {p.name: (p.annotation, p.default) for p in parameters if p.kind is p.KEYWORD_ONLY}
    return create_model(f"options of {name}", __config__=ConfigDict(extra="forbid"), **fields)


def checked_model(model: type[M], given: Any) -> M:
    """`given` as a model. Raises ValueError."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ValueError("; ".join(sentence(detail, list(model.model_fields)) for detail in error.errors())) from error


def sentence(detail: Any, known: Sequence[str]) -> str:
    """One sentence for an error of pydantic. `known`: the options that there are."""
    where, kind = ".".join(str(part) for part in detail["loc"]), detail["type"]
    if kind == "extra_forbidden":
        close = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1)
        guess = f" (did you mean {close[0]!r}?)" if close else f"; known: {', '.join(known)}"
        return f"unknown option {where!r}{guess}"
    if kind == "union_tag_invalid":
        given, kinds = detail["ctx"]["tag"], [tag.strip("' ") for tag in detail["ctx"]["expected_tags"].split(",")]
        close = difflib.get_close_matches(str(given), kinds, n=1)
        guess = f" (did you mean {close[0]!r}?)" if close else ""
        return f"{where}: there is no kind {given!r}{guess}; there are {', '.join(sorted(kinds))}"
    if kind == "union_tag_not_found":
        return f"{where}.kind is missing"
    if kind == "missing":
        return f"{where!r} is missing"
    if kind == "model_type":
        return f"{where!r} is a table; set its options, as in {where}.key=value, not {detail['input']!r}"
    if kind == "value_error":
        message = detail["msg"].removeprefix("Value error, ")
        return f"{where}: {message}" if where else message
    return f"{where}: {detail['msg']}, not {detail['input']!r}".replace(": Input should", " should")
