"""Actions of an agent in a sandbox, as text or as a tool call."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from agentgym.env import Action, ToolCall
from agentgym.spec import ToolSpec


@dataclass(frozen=True)
class Run:
    command: str


@dataclass(frozen=True)
class View:
    path: str
    first: int = 1
    last: int | None = None


@dataclass(frozen=True)
class Edit:
    """Lines `first` to `last` become `text`; with `last` = `first` - 1 it is put before line `first`."""

    path: str
    first: int
    last: int
    text: str


@dataclass(frozen=True)
class Submit:
    pass


Command = Run | View | Edit | Submit

GRAMMAR = "say `run COMMAND`, `view PATH`, `view PATH FIRST-LAST`, `edit PATH FIRST-LAST` and new lines, or `submit`"

_TEXT = {"type": "string"}
_LINE = {"type": "integer", "minimum": 0}


def _tool(name: str, description: str, required: list[str], **properties: dict) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return ToolSpec(name=name, description=description, parameters=schema)


_RUN = "Run a command in a shell that stays (bash, in /work)."

TOOLS = (
    _tool("run", _RUN, ["command"], command=_TEXT),
    _tool("view", "Show a file with line numbers.", ["path"], path=_TEXT, first=_LINE, last=_LINE),
    _tool(
        "edit",
        "Put `text` in place of lines `first` to `last`; before line `first` when `last` is one less.",
        ["path", "first", "last", "text"],
        path=_TEXT,
        first=_LINE,
        last=_LINE,
        text=_TEXT,
    ),
    _tool("submit", "End the episode: the work is judged, once.", []),
)


def tools(run: str) -> tuple[ToolSpec, ...]:
    """Return `TOOLS` with another description of `run`: of a shell that works otherwise."""
    return (_tool("run", run, ["command"], command=_TEXT), *TOOLS[1:])


def understand(action: Action) -> Command | None:
    """None for what is no action."""
    try:
        json.dumps(action, ensure_ascii=False).encode()
    except (TypeError, ValueError):  # half a character, or no JSON: no file and no reply could hold it
        return None
    if isinstance(action, str):
        return _text(action)
    return _call(action.get("name"), action.get("arguments"))


def _text(action: str) -> Command | None:
    verb, _, rest = action.strip().partition(" ") if not action.strip().startswith("edit") else ("edit", "", action)
    verb = verb.lower()
    if verb == "run" and rest.strip():
        return Run(rest.strip())
    if verb == "submit" and not rest:
        return Submit()
    if verb == "view":
        found = re.fullmatch(r"(\S+)(?:\s+(\d{1,7})-(\d{0,7}))?", rest.strip())
        if found:
            return View(found[1], int(found[2] or 1), int(found[3]) if found[3] else None)
    if verb == "edit":
        found = re.fullmatch(r"\s*edit\s+(\S+)\s+(\d{1,7})-(\d{1,7})[ \t]*(?:\n(.*))?", rest, re.DOTALL)
        if found:
            return Edit(found[1], int(found[2]), int(found[3]), found[4] or "")
    return None


def _call(name: object, given: object) -> Command | None:
    """A tool call whose arguments are those of the tool and of their types."""
    tool = next((tool for tool in TOOLS if tool.name == name), None)
    if tool is None or not isinstance(given, dict):
        return None
    known, required = tool.parameters["properties"], tool.parameters["required"]
    if not set(required) <= given.keys() <= known.keys():
        return None
    for key, value in given.items():
        line = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**7
        if not (isinstance(value, str) if known[key] is _TEXT else line):
            return None
    if any(not given[key].strip() for key in ("command", "path") if key in given):
        return None
    return {"run": Run, "view": View, "edit": Edit, "submit": Submit}[tool.name](**given)


def replace(content: str, edit: Edit) -> str | None:
    """The file's text after the edit; None when it has no such lines."""
    lines = content.split("\n")
    if not 1 <= edit.first <= len(lines) + 1 or not edit.first - 1 <= edit.last <= len(lines):
        return None
    new = edit.text.removesuffix("\n").split("\n") if edit.text else []
    return "\n".join([*lines[: edit.first - 1], *new, *lines[edit.last :]])


def text_of(lines: list[str]) -> str:
    """The text of an edit that puts these lines; a last line that is empty needs a line end of its own."""
    return "\n".join(lines) + ("\n" if lines and not lines[-1] else "")


def as_text(one: Command) -> str:
    if isinstance(one, Run):
        return f"run {one.command}"
    if isinstance(one, View):
        return f"view {one.path}" + (f" {one.first}-{one.last or ''}" if (one.first, one.last) != (1, None) else "")
    if isinstance(one, Edit):
        return f"edit {one.path} {one.first}-{one.last}" + (f"\n{one.text}" if one.text else "")
    return "submit"


def as_call(one: Command) -> ToolCall:
    arguments = {key: value for key, value in asdict(one).items() if value is not None}
    return {"name": type(one).__name__.lower(), "arguments": arguments}
