"""OpenEnv 0.10's sockets: `/ws`, one session a socket, and WS `/mcp`. Its clients find here what their servers do.

Where OpenEnv kills the session (a binary frame, a frame that is no object), the answer here is an error and the
session stays.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Coroutine
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from agentgym.errors import (
    AtCapacity,
    BadRequest,
    EnvironmentFailure,
    EnvironmentNotOpened,
    EpisodeLost,
    RateLimited,
    UnknownSession,
)
from agentgym.protocol import ResetRequest, SessionRequest, StepRequest
from agentgym_servers.env_server.attachments import Attachments
from agentgym_servers.env_server.openenv_rpc import Rpc, capacity, refused, tool_result, tools_of
from agentgym_servers.env_server.sequential import FrameReply, SequentialHandler
from agentgym_servers.web.backend import BackendReply, EnvBackend, consume_exception, done
from agentgym_servers.web.encoding import encode, wrapped
from agentgym_servers.web.parsing import NotJson, details, read
from agentgym_servers.web.websocket_handler import Meter

RESERVED = ("session_id", "episode_id", "queue_s")
"""Reset options that do not go to the environment."""

TOOL_ACTIONS = ("list_tools", "call_tool")

_validate_step = StepRequest.__pydantic_validator__.validate_python


class _Failed(Exception):
    """An error frame, and whether the socket closes after it."""

    def __init__(self, code: str, message: str, *, closes: bool = False, **more: Any) -> None:
        super().__init__(message)
        self.code, self.closes, self.more = code, closes, more


class _CallTool(BaseModel):
    """OpenEnv's action that calls a tool."""

    model_config = ConfigDict(extra="forbid")

    type: str = "call_tool"
    tool_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


class OpenEnvSocket(SequentialHandler):
    """One socket on `/ws`: a session of its own, ended with the socket, or the session `session_id` as long as it
    is attached."""

    def __init__(
        self,
        verbs: EnvBackend,
        env: str,
        attachments: Attachments,
        session_id: str | None,
        meter: Meter | None = None,
    ) -> None:
        super().__init__(meter)
        self._verbs, self._env, self._attachments = verbs, env, attachments
        self._wanted = session_id
        self._session: str | None = None
        self._label: str | None = None
        """The episode id that the client chose. Not the server's own: a client may use it for many episodes."""
        self._rpc = Rpc(verbs, env, attachments)
        self._tools = verbs.spec(env).tools

    def opened(self) -> FrameReply:
        return self._guarded(self._attach() if self._wanted is not None else self._open())

    def answered(self, frame: bytes | str) -> FrameReply:
        try:
            if self.meter is not None:
                self.meter()
            if isinstance(frame, str):
                raise NotJson(frame)
            message = read(frame)
            kind = message.get("type") if type(message) is dict else None
            if kind == "step":
                action = _data(message)
                if self._tools and ("tool_name" in action or action.get("type") in TOOL_ACTIONS):
                    return self._guarded(self._tool(action))
                answer = self._step(action)
                return _observation(answer) if type(answer) is bytes else self._guarded(self._stepped(answer))  # type: ignore[arg-type]
            return self._other(kind, message)
        except Exception as error:  # noqa: BLE001  (every frame gets its answer)
            return self._failure(error)

    def left(self) -> None:
        if self._session is None:
            return
        closing = self._attachments.remove(self._env, self._session)
        if self._wanted is None or closing:
            _close(self._verbs, self._env, self._session)
        self._session = None

    async def _open(self) -> None:
        self._session = json.loads(await done(self._verbs.open(self._env)))["session_id"]
        self._attachments.add(self._env, self._session)  # type: ignore[arg-type]

    async def _attach(self) -> None:
        assert self._wanted is not None
        if self._attachments.has(self._env, self._wanted):
            raise _Failed("SESSION_ERROR", f"session {self._wanted[:64]!r} already has a socket", closes=True)
        self._attachments.add(self._env, self._wanted)  # before the wait: a second socket must not pass meanwhile
        try:
            await done(self._verbs.state(self._env, self._wanted))
        except BaseException:
            self._attachments.remove(self._env, self._wanted)
            raise
        self._session = self._wanted

    def _step(self, action: dict[str, Any]) -> BackendReply:
        """Raises ValidationError, EnvironmentFailure or _Failed."""
        body = _validate_step({"session_id": self._here(), "action": action})
        chosen = body.action
        if (chosen.text is None) == (chosen.tool is None):
            raise _invalid("action", 'an action is {"text": ...} or {"tool": ..., "arguments": {...}}', action)
        if chosen.metadata and isinstance(key := chosen.metadata.get("request_id"), str):
            body = _validate_step({"session_id": self._here(), "action": action, "request_id": key})
        return self._verbs.step(self._env, body)

    async def _stepped(self, answer: BackendReply) -> bytes:
        return _observation(await done(answer))

    def _other(self, kind: Any, message: Any) -> FrameReply:
        """The frames that are not steps."""
        if type(message) is not dict:
            raise _invalid("frame", 'a frame is an object: {"type": "step", "data": {...}}', message)
        if kind == "reset":
            return self._guarded(self._reset(_data(message, optional=True)))
        if kind == "mcp":
            return self._guarded(self._mcp(_data(message)))
        if kind not in ("state", "close"):
            raise _Failed("UNKNOWN_TYPE", f"there is no frame type {str(kind)[:80]!r}")
        if len(message) > 1:
            raise _extra({key: message[key] for key in message if key != "type"})
        if kind == "state":
            return self._guarded(self._state())
        self.link.close()
        return None

    async def _reset(self, data: dict[str, Any]) -> bytes:
        label = data.get("episode_id")
        if not isinstance(label, str | None):
            raise _invalid("episode_id", "an episode id is a string", label)
        options = {key: value for key, value in data.items() if key not in RESERVED}
        body = ResetRequest.model_validate(options)
        if self._session is None and self._wanted is None:
            await self._open()
        try:
            reply = await done(self._verbs.reset(self._env, body.model_copy(update={"session_id": self._here()})))
        except (EpisodeLost, UnknownSession):
            if self._wanted is not None:
                raise
            self._drop()
            await self._open()  # its environment died: an episode asked for anew may begin in a new session
            reply = await done(self._verbs.reset(self._env, body.model_copy(update={"session_id": self._here()})))
        self._label = label
        return _observation(reply)

    async def _state(self) -> bytes:
        state = json.loads(await done(self._verbs.state(self._env, self._here())))
        if self._label is not None and state["episode_id"] is not None:
            state["episode_id"] = self._label
        return _frame("state", state)

    async def _mcp(self, data: dict[str, Any]) -> bytes:
        return wrapped({"type": "mcp"}, "data", await self._rpc.answer(data, self._session))

    async def _tool(self, action: dict[str, Any]) -> bytes:
        """OpenEnv's tool actions. What goes wrong with a tool is an observation, not an error."""
        if action.get("type") == "list_tools":
            shown = ("name", "description", "input_schema")
            tools = [{key: tool[key] for key in shown} for tool in tools_of(self._tools)]
            return _frame(
                "observation", {"observation": {"metadata": {}, "tools": tools}, "reward": None, "done": False}
            )
        call = _CallTool.model_validate(action)
        result, answer, wrong = None, {}, None
        if call.tool_name not in [tool.name for tool in self._tools]:
            wrong = {"error_type": "tool_not_found", "message": f"there is no tool {call.tool_name[:80]!r}"}
        else:
            wired = {"tool": call.tool_name, "arguments": call.arguments}
            body = _validate_step({"session_id": self._here(), "action": wired})
            try:
                answer = json.loads(await done(self._verbs.step(self._env, body)))
                result = tool_result(answer)
            except BadRequest as error:
                wrong = {"error_type": "invalid_args", "message": str(error)}
        observation = {"metadata": {}, "tool_name": call.tool_name, "result": result, "error": wrong}
        consume_exception = {
            "observation": observation,
            "reward": answer.get("reward"),
            "done": answer.get("done", False),
        }
        return _frame("observation", consume_exception)

    def _here(self) -> str:
        if self._session is None:
            raise _Failed("EXECUTION_ERROR", "the session is lost with its environment; a reset begins another")
        return self._session

    def _drop(self) -> None:
        """Forget a session that is no more."""
        if self._session is not None:
            self._attachments.remove(self._env, self._session)
            self._session = None

    async def _guarded(self, reply: Coroutine[Any, Any, bytes | None]) -> bytes | None:
        try:
            return await reply
        except Exception as error:  # noqa: BLE001  (every frame gets its answer)
            return self._failure(error)

    def _failure(self, error: Exception) -> bytes | None:
        """The error frame; None when it has been sent because the socket closes after it."""
        if isinstance(error, UnknownSession | EpisodeLost) and self._wanted is None:
            self._drop()
        failed = self._failure_of(error)
        frame = _frame("error", {"message": str(failed), "code": failed.code, **failed.more})
        if not failed.closes:
            return frame
        self.last(frame)
        return None

    def _failure_of(self, error: Exception) -> _Failed:
        """Return OpenEnv's form of it."""
        match error:
            case _Failed():
                return error
            case NotJson():
                return _Failed("INVALID_JSON", str(error))
            case ValidationError():
                return _Failed("VALIDATION_ERROR", f"{error.error_count()} validation errors", errors=_of_action(error))
            case RateLimited():
                return _Failed(error.code, str(error))
            case AtCapacity():
                more = capacity(self._verbs, self._env)
                return _Failed("CAPACITY_REACHED", str(error), closes=True, **more)
            case EnvironmentNotOpened():
                return _Failed("FACTORY_ERROR", str(error), closes=True, factory_name=self._env)
            case UnknownSession() | EpisodeLost() if self._wanted is not None:
                return _Failed("SESSION_ERROR", str(error), closes=True)
            case EnvironmentFailure():
                return _Failed("EXECUTION_ERROR", str(error))
        logging.getLogger(__name__).error("a frame met a bug of the server", exc_info=error)
        return _Failed("SESSION_ERROR", f"the server has a bug: {type(error).__name__}", closes=True)


class OpenEnvMcpSocket(SequentialHandler):
    """One socket on `/mcp`: JSON-RPC, with a session of its own that ends with the socket."""

    def __init__(self, verbs: EnvBackend, env: str, attachments: Attachments, meter: Meter | None = None) -> None:
        super().__init__(meter)
        self._verbs, self._env = verbs, env
        self._rpc = Rpc(verbs, env, attachments)
        self._attachments = attachments
        self._session: str | None = None

    def opened(self) -> FrameReply:
        return self._open()

    def answered(self, frame: bytes | str) -> FrameReply:
        try:
            if self.meter is not None:
                self.meter()
        except RateLimited as error:
            return refused(str(error))
        return self._rpc.raw(frame.encode() if isinstance(frame, str) else frame, self._session)

    def left(self) -> None:
        if self._session is not None:
            self._attachments.remove(self._env, self._session)
            _close(self._verbs, self._env, self._session)
            self._session = None

    async def _open(self) -> bytes | None:
        created = json.loads(await self._rpc.answer({"jsonrpc": "2.0", "method": "openenv/session/create", "id": None}))
        if created.get("error") is not None:
            self.last(encode(created))
            return None
        session = created["result"]["session_id"]
        self._session = session
        self._attachments.add(self._env, session)
        return None


def _close(verbs: EnvBackend, env: str, session_id: str) -> None:
    """Close without waiting: the socket has gone."""
    try:
        answer = verbs.close(env, SessionRequest(session_id=session_id))
    except EnvironmentFailure:  # it was gone before
        return
    if not isinstance(answer, bytes):
        answer.add_done_callback(consume_exception)


def _data(message: dict[str, Any], *, optional: bool = False) -> dict[str, Any]:
    """The `data` of a frame that may have nothing else beside its type. Raises _Failed."""
    if len(message) == 2 and type(data := message.get("data")) is dict:
        return data
    if optional and len(message) == 1:
        return {}
    extra = {key: value for key, value in message.items() if key not in ("type", "data")}
    raise _extra(extra) if extra else _invalid("data", "an object is needed here", message.get("data"))


def _extra(keys: dict[str, Any]) -> _Failed:
    return _invalid(next(iter(keys)), "Extra inputs are not permitted", next(iter(keys.values())), "extra_forbidden")


def _invalid(place: str, message: str, value: Any, kind: str = "value_error") -> _Failed:
    entry = {"type": kind, "loc": [place[:80]], "msg": message, "input": json.dumps(value)[:80]}
    return _Failed("VALIDATION_ERROR", f"the frame is not valid: {place[:80]}: {message}", errors=[entry])


def _of_action(error: ValidationError) -> list[dict[str, Any]]:
    """The errors with their places relative to the action."""
    entries = details(error)
    for entry in entries:
        if entry["loc"][:1] == ("action",):
            entry["loc"] = entry["loc"][1:]
    return entries


def _observation(reply: bytes) -> bytes:
    """A StepReply as the frame that OpenEnv's servers answer, without our own fields."""
    answer = from_json(reply)
    kept = {key: answer.get(key) for key in ("observation", "reward", "done")}
    return _frame("observation", {**kept, **({"metadata": answer["metadata"]} if answer.get("metadata") else {})})


def _frame(kind: str, data: dict[str, Any]) -> bytes:
    return encode({"type": kind, "data": data})
