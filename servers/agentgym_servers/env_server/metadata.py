"""/metadata and /schema of an environment, made from its EnvSpec."""

from __future__ import annotations

from typing import Any

from agentgym.protocol import WireAction
from agentgym.spec import EnvSpec

PROTOCOL = "1"
EXTENSIONS = (
    "sessions",
    "exactly_once",
    "step_many",
    "wait_for",
    "leases",
    "queue",
    "sessions_lookup",
    "socket",
)


def metadata_of(spec: EnvSpec) -> dict[str, Any]:
    """OpenEnv's fields and, under `agentgym`, the whole spec and what the server can do."""
    return {
        "name": spec.id,
        "description": spec.description,
        "readme_content": None,
        "version": spec.version,
        "author": None,
        "documentation_url": None,
        "agentgym": {
            "protocol": PROTOCOL,
            "spec": spec.model_dump(mode="json"),
            "extensions": [*EXTENSIONS, *spec.capabilities],
        },
    }


def schema_of(spec: EnvSpec) -> dict[str, Any]:
    """JSON Schemas of an environment's action, observation and state."""
    visual = "image" in spec.observations
    fields: dict[str, Any] = {"text": {"type": "string"}, "metadata": {"type": "object"}}
    if visual:
        fields["image"] = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}
    observation = {
        "title": "Observation",
        "type": "object",
        "properties": fields,
        "required": ["text", *(["image"] if visual else [])],
        "additionalProperties": False,
    }
    state = {
        "title": "State",
        "type": "object",
        "properties": {
            "episode_id": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "step_count": {"type": "integer", "minimum": 0, "default": 0},
        },
        "additionalProperties": True,
    }
    action = {**WireAction.model_json_schema(), "title": "Action"}
    return {"action": action, "observation": observation, "state": state, "reset_observation": observation}
