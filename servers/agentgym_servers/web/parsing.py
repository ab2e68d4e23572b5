"""Reading requests and writing refusals: the same for HTTP, the socket and OpenEnv's dialect."""

from __future__ import annotations

import json
import reprlib
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from agentgym.errors import AgentGymError, BadRequest, EnvironmentFailure
from agentgym.protocol import WireError
from agentgym_servers.web.encoding import encode

INPUT_SHOWN = 200
"""Characters of a wrong value that its error repeats."""
ENTRIES_SHOWN = 50
"""Errors of one request that are told."""
MANY_ERRORS = 1000
"""Errors of one request that are counted only: pydantic's list has no length, and takes longer than the request."""

ACTION_EXPECTED = (
    'an action is an object: {"text": "go north"} for text, {"tool": "click", "arguments": {"x": 3}} for a tool call'
)

SMALL = 64 * 2**10
"""Bytes of JSON whose values are not counted."""
MAX_VALUES = 500_000
"""Values of larger JSON: each takes far more memory and time than its bytes."""
MAX_KEYS = 50_000
"""Colons of larger JSON: a key takes thirty times as long to read as a number."""

RequestT = TypeVar("RequestT", bound=BaseModel)


class NotJson(AgentGymError):
    """A body or frame that cannot be read at all."""


def read(raw: bytes) -> Any:
    """The JSON value. Raises NotJson, also for NaN, for nesting too deep to be meant and for too many values."""
    if len(raw) > SMALL and raw.count(b",") + raw.count(b"[") + raw.count(b"{") > MAX_VALUES:
        raise NotJson(f"it has more than {MAX_VALUES} values; send them in several requests")
    if len(raw) > SMALL and raw.count(b":") > MAX_KEYS:
        raise NotJson(f"it has more than {MAX_KEYS} keys or colons; send them in several requests")
    try:
        return from_json(raw, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise NotJson(f"it is not JSON: {error}") from None


def parse(model: type[RequestT], raw: bytes) -> RequestT:
    """Raises NotJson or pydantic's ValidationError."""
    return model.__pydantic_validator__.validate_python(read(raw))


def failure(error: EnvironmentFailure) -> bytes:
    """The WireError."""
    return WireError.of(error).model_dump_json().encode()


def validation_error(error: ValidationError | NotJson) -> bytes:
    """The WireError of a request that is wrong, with OpenEnv's list of what is wrong in `detail`.

    An action's errors have their place within the action, others begin with "body".
    """
    if isinstance(error, NotJson):
        entries = [{"type": "json_invalid", "loc": ("body",), "msg": str(error), "input": {}}]
    else:
        entries = details(error)
    for entry in entries:
        location = entry["loc"]
        inside = len(location) > 1 and location[0] == "action"
        entry["loc"] = location[1:] if inside else ("body", *location) if location != ("body",) else location
    where = "; ".join(map(_sentence, entries[:5]))
    error_fields = WireError.of(BadRequest(f"the request is not valid: {where}"))
    return encode({**error_fields.model_dump(), "detail": entries})


def _sentence(entry: dict[str, Any]) -> str:
    """Return what is wrong, and where, unless it is the whole body."""
    if entry["loc"] == ("body",):
        return entry["msg"]
    return f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}"


def details(error: ValidationError) -> list[dict[str, Any]]:
    """pydantic's list of what is wrong, fit to send: few entries, long values cut."""
    if has_many(error):
        message = f"{error.error_count()} of its values are wrong or unknown"
        return [{"type": "too_many_errors", "loc": ("body",), "msg": message, "input": {}}]
    entries = error.errors(include_url=False, include_context=False)[:ENTRIES_SHOWN]
    return [
        {
            "type": entry["type"],
            "loc": tuple(part[:INPUT_SHOWN] if isinstance(part, str) else part for part in entry["loc"]),
            "msg": _message(entry),
            "input": _excerpt(entry["input"]),
        }
        for entry in entries
    ]


def has_many(error: ValidationError) -> bool:
    """Return whether there is more wrong than is worth a list."""
    return error.error_count() > MANY_ERRORS


def _is_small(value: Any, depth: int = 8) -> bool:
    """Return whether a value is short enough to be written out: all of a long one is never looked at."""
    if isinstance(value, str):
        return len(value) <= 10 * INPUT_SHOWN
    if isinstance(value, dict):
        return len(value) <= 8 and depth > 0 and all(_is_small(one, depth - 1) for one in (*value, *value.values()))
    if isinstance(value, list | tuple):
        return len(value) <= 64 and depth > 0 and all(_is_small(one, depth - 1) for one in value)
    return True


def _message(entry: ErrorDetails) -> str:
    """Return what is wrong with one field, without pydantic's names of our classes."""
    if entry["type"] in ("model_type", "model_attributes_type"):
        return ACTION_EXPECTED if entry["loc"][-1:] == ("action",) else "it should be a JSON object"
    return entry["msg"].removeprefix("Value error, ")


def _excerpt(value: Any) -> Any:
    if not _is_small(value):
        return f"{reprlib.repr(value)[:INPUT_SHOWN]}..."
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:  # 1e999 is read as infinity
        text = repr(value)
        return text[:INPUT_SHOWN]
    return value if len(text) <= INPUT_SHOWN else f"{text[:INPUT_SHOWN]}..."
