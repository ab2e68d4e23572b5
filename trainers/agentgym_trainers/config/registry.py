"""One registry for every axis of a recipe.

A part is found by a name of ours, by the name of another distribution's entry point in the axis' group, or as
"package.module:name". So a part of one's own is one file, and nothing here is edited.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict


@dataclass(frozen=True)
class FunctionPart:
    """A part that is a pure function of a batch; its options are the function's keyword-only parameters."""

    function: Callable[..., Any]
    needs: frozenset[str] = frozenset()
    """Requirements: columns of `Batch.x` ("bootstrap_M" only if a trajectory is truncated), "groups" of two or
    more trajectories, "anchors" that name states."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of what the function is called with, before its options."""
        return ("batch",)

    @property
    def description(self) -> str:
        return (inspect.getdoc(self.function) or "").partition("\n")[0]


class KindOptions(BaseModel):
    """The options of an axis with one part: a table with `kind`, the part's name. Subclasses fix it by a Literal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str


@dataclass(frozen=True)
class ClassPart:
    """A part that is built from a table of options."""

    options: type[BaseModel]
    build: Callable[..., Any]

    @property
    def description(self) -> str:
        return (inspect.getdoc(self.options) or "").partition("\n")[0]


P = TypeVar("P", bound=FunctionPart | ClassPart)
F = TypeVar("F", bound=Callable[..., Any])


def needs(*what: str) -> Callable[[F], F]:
    """Declare what a function of one's own must be given (`FunctionPart.needs`): a recipe without it is refused.

    @needs("groups", "anchors")
    def mine(batch: Batch, *, gamma: float = 1.0) -> Credit: ...
    """

    def declare(function: F) -> F:
        function.needs = frozenset(what)  # type: ignore[attr-defined]
        return function

    return declare


class Registry(dict[str, P], Generic[P]):
    """The parts of one axis by name. `registry[name]` also finds parts that live elsewhere, and raises ValueError where
    there is none; iterating gives ours."""

    def __init__(self, axis: str, part: type[P], parts: dict[str, P]) -> None:
        """`axis` in the singular ("assigner"): the group of its entry points is "agentgym.assigner"."""
        super().__init__(parts)
        self.axis, self._part = axis, part

    def names(self) -> list[str]:
        """Our names and those of installed entry points, sorted."""
        return sorted({*self, *(point.name for point in entry_points(group=self.group))})

    @property
    def group(self) -> str:
        """The group of entry points."""
        return f"agentgym.{self.axis}"

    def __missing__(self, name: str) -> P:
        if ":" in name:
            return self._adopt(self._load(name), name)
        for point in entry_points(group=self.group, name=name):
            return self._adopt(point.load(), point.value)
        close = difflib.get_close_matches(name, self.names(), n=1)
        guess = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(
            f"there is no {self.axis} {name!r}{guess}; there are {', '.join(self.names())}, and one of your own is "
            'named "package.module:name"'
        )

    def _load(self, target: str) -> Any:
        """The object at "package.module:name"."""
        module_name, _, name = target.partition(":")
        if not all(part.isidentifier() for part in [*module_name.split("."), name]):
            raise ValueError(f'{self.axis} {target!r}: one of your own is named "package.module:name"')
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            raise ValueError(
                f"{target!r}: there is no module {error.name!r} to import; install it, or put its folder in PYTHONPATH"
            ) from error
        if not hasattr(module, name):
            raise ValueError(f"{target!r}: {module_name} has no {name!r}")
        return getattr(module, name)

    def _adopt(self, found: Any, target: str) -> P:
        """`found` as a part of this axis: one as it is, or a plain function."""
        if isinstance(found, self._part):
            return found
        if not issubclass(self._part, FunctionPart) or not inspect.isfunction(found):
            plain = "a function or " if issubclass(self._part, FunctionPart) else ""
            raise ValueError(
                f"{target!r} names something of type {type(found).__name__}; for the axis {self.axis!r} name {plain}an "
                f"instance of {self._part.__module__}.{self._part.__name__}"
            )
        unfit = [p.name for p in inspect.signature(found).parameters.values() if not (_is_input(p) or _is_option(p))]
        if unfit:
            raise ValueError(
                f"{target!r}: what comes after the batch is an option, keyword-only, with a type and a default, as in "
                f"`def {found.__name__}(batch, *, gamma: float = 1.0)`; that is not so for {', '.join(unfit)}"
            )
        part = self._part(found, getattr(found, "needs", frozenset()))
        inputs = [p.name for p in inspect.signature(found).parameters.values() if _is_input(p)]
        if len(inputs) != len(part.inputs):
            raise ValueError(
                f"{target!r}: a function of the axis {self.axis!r} is called with {', '.join(part.inputs)}, and this "
                f"one takes {', '.join(inputs) or 'nothing'}: make others keyword-only options with a default"
            )
        return part


def _is_input(parameter: inspect.Parameter) -> bool:
    return parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.default is parameter.empty


def _is_option(parameter: inspect.Parameter) -> bool:
    named = parameter.kind is parameter.KEYWORD_ONLY
    return named and parameter.empty not in (parameter.annotation, parameter.default)
