"""Action schemas, observations and EnvSpecs of environments of other systems."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from agentgym.env import Action
from agentgym.errors import BadRequest, ConfigError
from agentgym.session import Session
from agentgym.spec import EnvSpec, ToolSpec

MAX_TURNS = 30
"""Default where neither the environment nor the caller sets it."""


class WithoutCapabilities(Session):
    """Session of a server whose protocol has neither queries nor snapshots. `server` is the protocol's name."""

    server: str

    async def query(self, name: str) -> Any:
        raise self._lacks(name)

    async def restore(self, state: bytes, *, seed: int | None = None) -> None:
        raise self._lacks("snapshot")

    def _lacks(self, what: str) -> BadRequest:
        return BadRequest(f"{self.spec.id} has no {what}: {self.server} server cannot have any")


@dataclass(frozen=True)
class Actions:
    """Mapping of our actions to the server's, by the JSON Schema of its action class."""

    field: str | None
    """The one field that a text goes into; None when there is no such field."""
    kind: str | None
    """The JSON type of the field; None when several are allowed."""
    fields: Mapping[str, Any]
    """Every field's schema, without `metadata`."""
    required: tuple[str, ...]
    tools: tuple[ToolSpec, ...]
    calls_tools: bool
    """Actions are {"type": "call_tool", "tool_name": ..., "arguments": ...}."""

    @classmethod
    def of(cls, schema: Mapping[str, Any], tools: Sequence[Any]) -> Actions:
        properties = schema.get("properties")
        fields = {k: v for k, v in (properties if isinstance(properties, dict) else {}).items() if k != "metadata"}
        required = tuple(name for name in schema.get("required") or () if name in fields)
        offered = tuple(tool for tool in map(_tool, tools) if tool is not None)
        # A class of actions without fields of its own is the base of all, which takes the MCP forms.
        calls_tools = bool(offered) and (not fields or "tool_name" in fields)
        candidates = required or tuple(fields)
        if len(candidates) != 1:
            text_fields = tuple(name for name in candidates if _type(fields[name]) == "string")
            candidates = tuple(name for name in ("text", "message") if name in text_fields)[:1]
            if any(name not in candidates for name in required):
                candidates = ()
        field = candidates[0] if candidates and not calls_tools else None
        kind = _type(fields[field]) if field is not None else None
        if not calls_tools:
            offered = () if field is not None or not fields else (_one_tool(schema, fields, required),)
        return cls(field, kind, fields, required, offered, calls_tools)

    def encode(self, action: Action) -> dict[str, Any]:
        """The fields of the server's action. Raises ValueError, in words for the agent, when there are none."""
        if not isinstance(action, str):
            name, arguments = action["name"], action["arguments"]
            if self.calls_tools:
                return {"type": "call_tool", "tool_name": name, "arguments": arguments}
            return dict(arguments)
        if self.calls_tools:
            return self.encode(_call_in(action))
        if self.field is None:
            return _object_in(action, "the action's fields")
        if self.kind in ("string", None):
            return {self.field: action}
        try:
            value = json.loads(action)
        except (ValueError, RecursionError):
            raise ValueError(f"{action[:80]!r} is no {self.kind}") from None
        return value if isinstance(value, dict) and self.kind != "object" else {self.field: value}

    def explain(self) -> str:
        """A sentence for the instructions."""
        if self.calls_tools:
            return "Act by calling a tool."
        if self.field is None:
            return "Act with a JSON object with the fields " + ", ".join(self.fields) + "." if self.fields else ""
        return "" if self.kind in ("string", None) else f"Act with a JSON {self.kind}: the value of {self.field!r}."


def describe(
    metadata: Mapping[str, Any], actions: Actions, splits: Mapping[str, int], known_spec: Mapping[str, Any], url: str
) -> EnvSpec:
    """The EnvSpec of an environment that does not know the idea. `told` overrides. Raises ConfigError."""
    description = metadata.get("description") or f"{metadata['name']} at {url}."
    readme = metadata.get("readme_content") or ""
    known: dict[str, Any] = {
        "id": metadata["name"],
        "version": metadata.get("version") or "1.0.0",
        "description": description,
        "instructions": "\n".join(part for part in (readme.strip() or description, actions.explain()) if part),
        "tools": actions.tools,
        "splits": dict(splits),
        "max_turns": MAX_TURNS,
        "deterministic": False,
        "notes": "Described by its server's metadata and schema; limits, rewards and instructions are assumed.",
    }
    try:
        return EnvSpec.model_validate({**known, **known_spec})
    except ValidationError as error:
        raise ConfigError(f"the environment at {url} cannot be described as told: {error}") from error


def read_observation(observation: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """An observation as text, and what becomes `info`: its metadata, and the fields beside the text.

    The text is its `text`, or its only field when that is a string; a tool's result; anything else as compact JSON.
    """
    fields = {key: value for key, value in observation.items() if key != "metadata"}
    metadata = observation.get("metadata")
    info = dict(metadata) if isinstance(metadata, dict) else {}
    if "tool_name" in fields and "result" in fields:
        return _result_text(fields), info
    if isinstance(fields.get("text"), str):
        return fields.pop("text"), {**fields, **info}
    if len(fields) == 1 and isinstance(only := next(iter(fields.values())), str):
        return only, info
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")), info


def _result_text(fields: Mapping[str, Any]) -> str:
    error, result = fields.get("error"), fields["result"]
    if error:
        return f"Error: {error.get('message', error) if isinstance(error, dict) else error}"
    content = result.get("content") if isinstance(result, dict) else None
    texts = [part["text"] for part in content or () if isinstance(part, dict) and isinstance(part.get("text"), str)]
    if texts and len(texts) == len(content or ()):
        return "\n".join(texts)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, separators=(",", ":"))


def _type(schema: Any) -> str | None:
    """The JSON type that a field's schema names, `null` beside it aside."""
    if not isinstance(schema, dict):
        return None
    kinds = {_type(part) for part in schema.get("anyOf", ())} - {"null"}
    kind = schema.get("type") if not kinds else (kinds.pop() if len(kinds) == 1 else None)
    return kind if isinstance(kind, str) else None


def _tool(listed: Any) -> ToolSpec | None:
    if not isinstance(listed, dict) or not isinstance(listed.get("name"), str):
        return None
    described: dict[str, Any] = {"name": listed["name"], "description": str(listed.get("description") or "")}
    parameters = listed.get("inputSchema") or listed.get("input_schema")
    if isinstance(parameters, dict):
        described["parameters"] = parameters
    return ToolSpec(**described)


def _one_tool(schema: Mapping[str, Any], fields: Mapping[str, Any], required: Sequence[str]) -> ToolSpec:
    """An action of several fields, as a tool whose arguments they are."""
    parameters: dict[str, Any] = {"type": "object", "properties": dict(fields), "required": list(required)}
    if "$defs" in schema:
        parameters["$defs"] = schema["$defs"]
    return ToolSpec(name="act", description=str(schema.get("description") or "Act."), parameters=parameters)


def _object_in(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"it must be a JSON object of {what}")
    return value


def _call_in(text: str) -> Any:
    call = _object_in(text, 'a tool call: {"name": ..., "arguments": {...}}')
    if not isinstance(call.get("name"), str) or not isinstance(call.get("arguments", {}), dict):
        raise ValueError('a tool call is {"name": ..., "arguments": {...}}')
    return {"name": call["name"], "arguments": call.get("arguments", {})}
