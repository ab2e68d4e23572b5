"""EnvSpec: what an environment says of itself, and `spec.toml`, the file that holds it."""

from __future__ import annotations

import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentgym.errors import ConfigError

Capability = Literal["snapshot", "solver", "hint", "image", "two_player"]
ActionFormat = Literal["last_line", "tagged", "tool_call"]
"""Place of the action in a response. "last_line": the last line that is not empty, after </think>; marks around a
block of code are none. "tagged": the last <action>...</action>, of one or several lines. "tool_call": JSON {"name",
"arguments"}, bare or in <tool_call> tags, or the server's own `tool_calls`."""
InfoKey = Literal[
    "success", "valid_action", "state_key", "progress", "milestone", "available_actions", "role", "rewards"
]


class ToolSpec(BaseModel):
    """A tool the agent may call, as OpenAI-compatible servers take it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema of the arguments."""


class EnvSpec(BaseModel):
    """An environment's description, from the `spec.toml` of its folder or an attribute of its class."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    version: str = "1.0.0"
    """Followed by the versions of the packages that spec.toml names in `tasks_from`: "1.0.0+minigrid-3.0.2"."""
    family: str = ""
    """Kind of environment: "text", "web", "gui", "swe", "search", "tools", "games", "research"."""
    description: str
    """One sentence: what the environment is and what it teaches."""
    instructions: str
    """Text for the agent before the first observation: the goal and how to act."""
    actions: tuple[str, ...] = ()
    """Every legal action when they are few and fixed; empty when actions are open text or tools."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools whose calls are the actions; empty when actions are text."""
    text_tool: str = ""
    """Tool that a response without a call stands for, as in a conversation: its one required argument is the text of
    the response. When empty, such a response is no action."""
    action_format: ActionFormat = "last_line"
    """Place of the action in a response, unless the run says otherwise.

    The default is "tool_call" where there are tools. An environment whose actions may have several lines needs
    "tagged".
    """
    observations: tuple[Literal["text", "image"], ...] = ("text",)
    splits: dict[str, int] = Field(default_factory=lambda: {"train": 1})
    """Number of tasks in each split; task `i` of a split is `options={"split": split, "task": i}`."""
    task_set: str = ""
    """Hash of the tasks where they are data (`TaskSet.content_hash`); else id and version say which tasks they are."""
    max_turns: int = Field(gt=0)
    """The environment truncates itself after this many steps."""
    turn_limit: Literal["terminates", "truncates"] = "terminates"
    """Meaning of that limit for value targets. "terminates": it is part of the task, which is lost when it is reached;
    the value after it is 0. "truncates": the task would go on; value targets bootstrap from the final observation."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """Least and greatest reward of a single step."""
    info_keys: tuple[InfoKey, ...] = ()
    """Optional `info` keys that every step carries."""
    capabilities: tuple[Capability, ...] = ()
    deterministic: bool = True
    """Same task, seed and actions give the same episode. When False, `notes` says why."""
    inline: bool = False
    """Steps take well under a millisecond and cannot hang: a server may run them in its own thread."""
    step_deadline_s: float = 30.0
    """A step (or reset) slower than this many seconds has failed."""
    resources: dict[str, str] = Field(default_factory=dict)
    """Needs of a session, for people and schedulers: {"memory": "20 MB", "program": "chromium"}."""
    notes: str = ""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Constructor arguments of the class that this id stands for."""

    @model_validator(mode="before")
    @classmethod
    def _default_action_format(cls, fields: Any) -> Any:
        """Fill in `action_format`. Servers of older versions do not send it either."""
        if not isinstance(fields, dict) or fields.get("action_format") or not fields.get("tools"):
            return fields
        return {**fields, "action_format": "tool_call"}

    @model_validator(mode="after")
    def _text_tool_takes_text(self) -> EnvSpec:
        needed = {tool.name: len(tool.parameters.get("required", ())) for tool in self.tools}
        if self.text_tool and needed.get(self.text_tool) != 1:
            raise ValueError(f"text_tool is a tool with one required argument, and {self.text_tool!r} is not")
        return self

    @classmethod
    def load(cls, path: Path, name: str | None = None) -> EnvSpec:
        """Read the spec of `name` (the file's first environment when None) from a `spec.toml`.

        Raises ConfigError naming the file and the field that is wrong.
        """
        variants = read_variants(path)
        fields = variants.get(name) if name else next(iter(variants.values()))
        if fields is None:
            raise ConfigError(f"{path} describes no environment {name!r}, only {', '.join(variants)}")
        fields = {key: value for key, value in fields.items() if key != "entry_point"}
        build = build_of(path, fields.pop("tasks_from", []))
        try:
            spec = cls.model_validate(fields)
        except ValidationError as error:
            raise ConfigError(f"{path} is not a valid environment spec: {error}") from error
        return spec.model_copy(update={"version": f"{spec.version}{build}"})


def build_of(path: Path, packages: Any) -> str:
    """Return installed versions of the packages that tasks are made by or from: "+minigrid-3.0.2", a version's build.

    The same code makes other tasks of another version's data. A package that is not installed is left out. Raises
    ConfigError where `packages` is no list of names.
    """
    if not isinstance(packages, list) or not all(isinstance(name, str) and name for name in packages):
        raise ConfigError(f"{path}: tasks_from is a list of installed packages' names, not {packages!r}")
    found = []
    for name in packages:
        with suppress(PackageNotFoundError):
            found.append(f"{name}-{version(name)}")
    return "+" + ".".join(found) if found else ""


def read_variants(path: Path) -> dict[str, dict[str, Any]]:
    """The fields of every environment that a `spec.toml` describes, by id: those of EnvSpec, `entry_point`, and
    `tasks_from`, packages whose installed versions are a part of the environment's.

    A file without `[variants.ID]` describes one environment, whose `id` is at its top. With them it describes one
    environment each: a variant's fields replace those at the top. Raises ConfigError for a file that does neither.
    """
    try:
        shared = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not a valid environment spec: {error}") from error
    variants = shared.pop("variants", {})
    if not variants and isinstance(shared.get("id"), str):
        return {shared["id"]: shared}
    if not variants or "id" in shared or not all(isinstance(fields, dict) for fields in variants.values()):
        raise ConfigError(
            f"{path} is not a valid environment spec: it has neither an `id` at its top nor only tables "
            "[variants.ID]; give it one or the other"
        )
    return {name: {**shared, "id": name, **fields} for name, fields in variants.items()}
