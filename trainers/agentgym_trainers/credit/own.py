"""Assigners that live elsewhere: a recipe names one as "package.module:function", and nothing here is edited."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from agentgym_trainers.data.batch import Credit

F = TypeVar("F", bound=Callable[..., Credit])


def needs(*what: str) -> Callable[[F], F]:
    """Says what an assigner of one's own must be given, as `Assigner.needs` does: a recipe without it is refused.

    @needs("groups", "anchors")
    def mine(batch: Batch, *, gamma: float = 1.0) -> Credit: ...
    """

    def said(function: F) -> F:
        function.needs = frozenset(what)  # type: ignore[attr-defined]
        return function

    return said


def load(target: str) -> tuple[Callable[..., Credit], frozenset[str]]:
    """The function at "package.module:function", and what it needs. Raises ValueError where there is none to use."""
    module_name, _, name = target.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), name]):
        raise ValueError(f'an assigner of your own is named "package.module:function", not {target!r}')
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"{target!r}: there is no module {error.name!r} to import; install it, or put its folder in PYTHONPATH"
        ) from error
    function: Any = getattr(module, name, None)
    if not inspect.isfunction(function):
        raise ValueError(f"{target!r}: {module_name} has no function {name!r}")
    options = list(inspect.signature(function).parameters.values())[1:]
    unfit = [p.name for p in options if p.kind is not p.KEYWORD_ONLY or p.empty in (p.annotation, p.default)]
    if unfit:
        raise ValueError(
            f"{target!r}: what comes after the batch is an option, keyword-only, with a type and a default, as in "
            f"`def {name}(batch, *, gamma: float = 1.0)`; that is not so for {', '.join(unfit)}"
        )
    return function, getattr(function, "needs", frozenset())
