"""The HTTP bodies: OpenEnv 0.10's fields and, beside them, ours. Only these models cross the network.

A session is opened by `POST /reset` (without `session_id`), stepped by `POST /step`, ended by `POST /close`. Every step
carries the 0-based index of the step it asks for: asked again, the server replays its stored reply; so a retry after
a lost reply never acts twice. `POST /step_many` takes many sessions' steps in one request. `VERBS` lists every verb:
servers and clients read it, so that a further query of a session is one line there.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic_core import to_json

from agentgym.env import Action, Observation
from agentgym.errors import FAILURES, EnvironmentFailure, MissingDependency, Scope

MAX_OPTIONS_BYTES = 64 * 2**10
"""JSON of the options that a reset passes on to the environment."""
QUEUE_S: Any = Field(default=0.0, ge=0, le=600)


class RequestModel(BaseModel):
    """A request: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class ReplyModel(BaseModel):
    """A reply: unknown fields, a newer server's, are ignored."""

    model_config = ConfigDict(extra="ignore")


class ResetRequest(BaseModel):
    """Begin an episode: in a new session, or in `session_id`. Further keys are the environment's own reset options."""

    model_config = ConfigDict(extra="allow")

    seed: int | None = Field(default=None, ge=0)
    episode_id: str | None = Field(default=None, max_length=255)
    session_id: str | None = Field(default=None, max_length=64)
    split: str | None = Field(default=None, max_length=1024)
    index: int | None = Field(default=None, ge=0)
    """The task within the split. OpenEnv's name for it; `task` in `reset(options=...)`."""
    queue_s: float = QUEUE_S
    """Seconds to wait for room, first come first served, before the answer is CAPACITY_REACHED."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        size = len(to_json(self.model_extra, serialize_unknown=True)) if self.model_extra else 0
        if size > MAX_OPTIONS_BYTES:
            raise ValueError(
                f"the environment's options may have {MAX_OPTIONS_BYTES} bytes of JSON, these have {size}: leave out "
                "what the environment does not read"
            )
        return self

    def options(self) -> dict[str, Any]:
        """`options` of `Env.reset`."""
        options = dict(self.model_extra or {})
        if self.split is not None:
            options["split"] = self.split
        if self.index is not None:
            options["task"] = self.index
        return options


class WireAction(RequestModel):
    """An action: `{"text": ...}` or `{"tool": ..., "arguments": {...}}`."""

    text: str | None = None
    tool: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of(cls, action: Action) -> WireAction:
        return cls(text=action) if isinstance(action, str) else cls(tool=action["name"], arguments=action["arguments"])

    def value(self) -> Action:
        """Raises ValueError unless it is exactly one of the two forms."""
        if (self.text is None) == (self.tool is None):
            raise ValueError('an action is {"text": ...} or {"tool": ..., "arguments": {...}}')
        return self.text if self.tool is None else {"name": self.tool, "arguments": self.arguments}  # type: ignore[return-value]


class StepRequest(RequestModel):
    session_id: str = Field(max_length=64)
    action: WireAction
    step: int | None = Field(default=None, ge=0)
    """The 0-based index of this step in the episode. Without it a retry may act twice."""
    episode_id: str | None = Field(default=None, max_length=255)
    """The episode that the step belongs to, when given: a late duplicate never acts in the session's next episode."""
    timeout_s: float | None = Field(default=None, gt=0)
    request_id: str | None = Field(default=None, max_length=255)
    """Echoed in the reply. Without `step` it is what makes a retry safe: the same id gets the stored reply."""


class StatelessStepRequest(BaseModel):
    """OpenEnv's /step: in a fresh environment, closed after it. Further keys are ignored."""

    model_config = ConfigDict(extra="ignore")

    action: WireAction
    timeout_s: float | None = Field(default=None, gt=0)
    request_id: str | None = Field(default=None, max_length=255)


class StepManyRequest(RequestModel):
    steps: list[StepRequest] = Field(min_length=1, max_length=4096)
    wait_for: int = Field(default=1, ge=1)
    """Answer once so many steps are ready (all, when there are fewer) ..."""
    wait_s: float = Field(default=0.05, ge=0, le=60)
    """... and at most this much later; over HTTP those still running answer null and are asked for again."""


class SessionRequest(RequestModel):
    """The body of /close and of every query."""

    session_id: str = Field(max_length=64)


class RestoreRequest(RequestModel):
    """Open a new session in the state that /snapshot returned (a fork)."""

    snapshot: str
    """base64."""
    seed: int | None = Field(default=None, ge=0)
    """Chance from here on is drawn from it; without, as the episode of the snapshot would have gone on."""
    episode_id: str | None = Field(default=None, max_length=255)
    """Asked again with the same id, the server answers with the same new session."""
    queue_s: float = QUEUE_S


class StepReply(ReplyModel):
    """The reply of /reset and /step. `done` is `terminated or truncated`, for OpenEnv's clients."""

    observation: dict[str, Any]
    """{"text": str, "image": base64 PNG when the environment is seen, "metadata": {}}."""
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None
    session_id: str = ""
    step: int = 0
    """Steps taken so far: 0 after reset."""
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = Field(default_factory=dict)
    server_ms: float = 0.0
    request_id: str | None = None


class SessionReply(ReplyModel):
    """The reply of /restore and /close."""

    session_id: str
    step: int = 0
    closed: bool = False


class SessionInfo(ReplyModel):
    """The reply of GET /sessions/{id}."""

    session_id: str
    env: str
    step: int = 0
    """Steps taken in the present episode."""
    episode_id: str | None = None
    busy: bool = False
    """A call of this session is running."""


class WireError(ReplyModel):
    """The body of every reply that is not 2xx, and of a failed entry of /step_many."""

    code: str
    scope: Scope = "server"
    retryable: bool = False
    message: str

    @classmethod
    def of(cls, error: EnvironmentFailure) -> WireError:
        return cls(code=error.code, scope=error.scope, retryable=error.retryable, message=str(error))

    def exception(self) -> EnvironmentFailure:
        return FAILURES.get(self.code, EnvironmentFailure)(self.message)


class StepManyReply(ReplyModel):
    results: list[StepReply | WireError | None]
    """One a request, in order; None is still running: ask for the same step again."""


@dataclass(frozen=True)
class ValueType:
    """Type of the value that a query returns, and its form on the wire."""

    wire: Any
    """Type of the reply's field."""
    encode: Callable[[Any], Any]
    """Encode the environment's value. Raises ValueError, TypeError or KeyError for one that its contract forbids."""
    decode: Callable[[Any], Any]
    """Decode the reply's field. Raises ValueError."""


def _encode_action(action: Any) -> dict[str, Any]:
    wire = WireAction.of(action)
    if wire.value() != action:
        raise ValueError("an action has further keys")
    json.dumps(action)
    return wire.model_dump()


def _encode_text(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"a text is a str, not {type(text).__name__}")
    text.encode()  # a lone surrogate cannot be sent
    return text


def _encode_bytes(content: Any) -> str:
    if not isinstance(content, bytes):
        raise TypeError(f"bytes are expected, not {type(content).__name__}")
    return base64.b64encode(content).decode()


def _decode_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


ACTION = ValueType(WireAction, _encode_action, WireAction.value)
TEXT = ValueType(str, _encode_text, str)
BYTES = ValueType(str, _encode_bytes, _decode_bytes)
"""bytes; base64 on the wire."""


@dataclass(frozen=True)
class Verb:
    """A verb of the protocol: `POST /NAME` over HTTP, a frame of type NAME on the socket."""

    name: str
    request: type[BaseModel]
    reply: type[BaseModel]
    capability: str | None = None
    """Capability that the environment needs."""
    field: str = ""
    """The reply's field with a query's value; empty for the other verbs."""
    value: ValueType = TEXT
    """Type of a query's value."""

    @property
    def is_query(self) -> bool:
        """True for a verb that returns one value and leaves the session as it is."""
        return bool(self.field)

    def encode_reply(self, session_id: str, value: Any) -> bytes:
        """JSON of a query's reply. `value` is encoded already."""
        return self.reply(session_id=session_id, **{self.field: value}).model_dump_json().encode()


def query(name: str, *, capability: str, field: str, value: ValueType) -> Verb:
    """Return a verb that calls the environment's method `name` without arguments and returns its result."""
    fields: dict[str, Any] = {"session_id": (str, ...), field: (value.wire, ...)}
    reply = create_model(f"{name.title()}Reply", __base__=ReplyModel, __doc__=f"The reply of /{name}.", **fields)
    return Verb(name, SessionRequest, reply, capability, field, value)


VERBS: dict[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb("reset", ResetRequest, StepReply),
        Verb("step", StepRequest, StepReply),
        Verb("step_many", StepManyRequest, StepManyReply),
        Verb("close", SessionRequest, SessionReply),
        query("solver", capability="solver", field="action", value=ACTION),
        query("hint", capability="hint", field="hint", value=TEXT),
        query("snapshot", capability="snapshot", field="snapshot", value=BYTES),
        Verb("restore", RestoreRequest, SessionReply, capability="snapshot"),
    )
}
"""Every verb by its name. Routes, socket, gateway and clients read this table when a server or session is made."""


def encode_observation(observation: Observation) -> dict[str, Any]:
    """The `observation` field of a StepReply."""
    if isinstance(observation, str):
        return {"text": observation, "metadata": {}}
    image = base64.b64encode(encode_image(observation["image"])).decode()
    return {"text": observation["text"], "image": image, "metadata": {}}


def encode_image(image: np.ndarray) -> bytes:
    """uint8[H, W, 3] as a PNG."""
    buffer = io.BytesIO()
    _pillow().fromarray(image).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def decode_observation(field: dict[str, Any]) -> Observation:
    """The observation that `encode_observation` encoded. Raises ValueError for anything else."""
    text = field.get("text")
    if not isinstance(text, str):
        raise ValueError(f"an observation needs a `text`, this one has {sorted(field)}")
    if field.get("image") is None:
        return text
    image = _pillow().open(io.BytesIO(base64.b64decode(field["image"]))).convert("RGB")
    return {"text": text, "image": np.asarray(image)}


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependency("observations with images need Pillow: pip install pillow") from error
    return Image
