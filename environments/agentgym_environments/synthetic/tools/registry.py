"""Tools: functions with typed arguments that read and write the database, and their JSON schemas.

    @tool
    def notes_read(desk: Desk, note: Id) -> Any:
        '''The whole text of a note.'''

The first parameter is what the tool works on; the others become a pydantic model, whose JSON Schema the agent sees.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from agentgym.env import Action
from agentgym.spec import ToolSpec

Id = Annotated[int, Field(ge=1, le=10**9)]
Text = Annotated[str, Field(max_length=4000)]
Line = Annotated[str, Field(max_length=200)]
Page = Annotated[int, Field(ge=1, le=1000, description="ten a page")]
Day = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", description="YYYY-MM-DD")]
Moment = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2} \d{2}:\d{2}$", description="YYYY-MM-DD HH:MM")]
Address = Annotated[str, Field(max_length=200, pattern=r"^[^@\s,]+@[^@\s,]+$", description="e-mail address")]
Money = Annotated[float, Field(gt=0, le=10**7, description="in euros")]

PAGE = 10
"""Rows of one page of a list."""


class CallRefused(Exception):
    """An app says no; the agent reads why."""


class Call(NamedTuple):
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A function that agents may call."""

    name: str
    description: str
    function: Callable[..., Any]
    arguments: type[BaseModel]

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name=self.name, description=self.description, parameters=_plain(self.arguments))

    @property
    def usage(self) -> str:
        """One line: name(argument, optional=default): what it does."""
        parameters = []
        for name, one in self.arguments.model_fields.items():
            default = "" if one.is_required() else f"={json.dumps(one.default)}"
            parameters.append(f"{name}{default}" + (f" ({one.description})" if one.description else ""))
        return f"{self.name}({', '.join(parameters)}): {self.description}"


def tool(function: Callable[..., Any], description: str = "") -> Tool:
    """A Tool of a function, by its name and its docstring or `description`."""
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    fields: dict[str, Any] = {
        one.name: (one.annotation, ... if one.default is one.empty else one.default) for one in parameters
    }
    config = ConfigDict(extra="forbid", allow_inf_nan=False)
    model = create_model(function.__name__, __config__=config, **fields)
    return Tool(function.__name__, description or " ".join((function.__doc__ or "").split()), function, model)


def tools_of(*modules: Any) -> dict[str, Tool]:
    """Every Tool of the modules, by name, in their order."""
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Tool)]
    return {one.name: one for one in found}


def read_call(action: Action) -> Call:
    """The call in an action: a tool call, or its JSON as text. Raises CallRefused, saying what is wrong."""
    how = 'write one JSON object {"name": tool, "arguments": {...}}'
    if isinstance(action, str):
        try:
            action = json.loads(action)
        except (ValueError, RecursionError):
            raise CallRefused(f"not a tool call: {how}") from None
    if not isinstance(action, dict) or not isinstance(action.get("name"), str):
        raise CallRefused(f"not a tool call: {how}")
    arguments = action.get("arguments", {})
    if not isinstance(arguments, dict) or set(action) - {"name", "arguments"}:
        raise CallRefused(f"not a tool call: {how}")
    return Call(action["name"], arguments)


def call(tools: dict[str, Tool], desk: Any, name: str, given: dict[str, Any]) -> Any:
    """Return what the tool returns. Raises CallRefused for an unknown tool, for arguments that do not fit, or when it
    says no."""
    if name not in tools:
        raise CallRefused(f"there is no tool {name[:60]!r}; call help")
    one = tools[name]
    try:
        arguments = one.arguments.model_validate(given)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, what['loc']))[:60]}: {what['msg']}" for what in error.errors()[:4]]
        raise CallRefused(f"{'; '.join(problems)}. Usage: {one.usage}") from None
    return one.function(desk, **{key: getattr(arguments, key) for key in one.arguments.model_fields})


def render(result: Any) -> str:
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def page_of(rows: Iterable[Any], page: int) -> dict[str, Any]:
    """One page of a list, and how many pages there are."""
    rows = list(rows)
    pages = max(1, -(-len(rows) // PAGE))
    return {"page": page, "pages": pages, "found": rows[(page - 1) * PAGE : page * PAGE]}


def cents(amount: float) -> int:
    """Raises CallRefused for parts of a cent."""
    rounded = round(amount * 100)
    if abs(amount * 100 - rounded) > 1e-6:
        raise CallRefused(f"an amount has at most two decimals, not {amount}")
    return rounded


def euros(amount: int) -> float:
    return amount / 100


def _plain(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema without what only pydantic needs, and without null, which TOML cannot say."""
    schema = model.model_json_schema()
    properties = {}
    for name, one in schema.get("properties", {}).items():
        kinds = [kind for kind in one.pop("anyOf", []) if kind != {"type": "null"}]
        merged = {**(kinds[0] if kinds else {}), **one}
        properties[name] = {key: value for key, value in merged.items() if key != "title" and value is not None}
    plain: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**plain, "required": schema["required"]} if schema.get("required") else plain
