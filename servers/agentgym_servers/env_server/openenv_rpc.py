"""OpenEnv's JSON-RPC (`POST /mcp`, WS `/mcp`, frames on `/ws`): an environment's tools listed and called, sessions by
name.

A tool is one of `EnvSpec.tools`; calling it is a step whose action is the call.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentgym.errors import (
    AtCapacity,
    BadRequest,
    EnvironmentFailure,
    EnvironmentNotOpened,
    EpisodeLost,
    SessionBusy,
    UnknownSession,
)
from agentgym.protocol import ResetRequest, SessionRequest, StepRequest, WireAction
from agentgym.spec import ToolSpec
from agentgym_servers.env_server.attachments import Attachments
from agentgym_servers.web.backend import EnvBackend, done
from agentgym_servers.web.encoding import encode
from agentgym_servers.web.parsing import NotJson, read

PARSE, INVALID, UNKNOWN_METHOD, PARAMS, INTERNAL, SERVER = -32700, -32600, -32601, -32602, -32603, -32000

RpcMethod = Callable[[dict[str, Any], str | None], Awaitable[Any]]
"""Function of the params and the session that the request came with; raises Refused or EnvironmentFailure."""


class JsonRpcError(Exception):
    """The error that answers a request."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.data = code, data


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] = Field(default_factory=dict)
    id: str | int | None = None


def tools_of(tools: tuple[ToolSpec, ...]) -> list[dict[str, Any]]:
    """The tool descriptors, with the schema under both of the names that OpenEnv's servers use."""
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "inputSchema": tool.parameters,
            "input_schema": tool.parameters,
        }
        for tool in tools
    ]


class Rpc:
    """Answers JSON-RPC requests for one environment. Every request gets a response, never an exception.

    `methods`: further ones, or others in place of these.
    """

    def __init__(
        self, verbs: EnvBackend, env: str, attachments: Attachments, methods: Mapping[str, RpcMethod] | None = None
    ) -> None:
        self._verbs, self._env, self._attachments = verbs, env, attachments
        self._methods: dict[str, RpcMethod] = {
            "tools/list": self._list,
            "tools/call": self.tools_call,
            "openenv/session/create": self._create,
            "openenv/session/close": self._close,
            **(methods or {}),
        }

    async def raw(self, body: bytes, own: str | None = None) -> bytes:
        """The response to a body or frame; `own` is the session of the socket it came by."""
        try:
            return await self.answer(read(body), own)
        except NotJson as error:
            return _response(None, error={"code": PARSE, "message": f"Parse error: {error}", "data": None})

    async def answer(self, message: Any, own: str | None = None) -> bytes:
        """The response to a request that has been read."""
        identity = message.get("id") if isinstance(message, dict) else None
        if isinstance(identity, bool) or not isinstance(identity, str | int | None):
            identity = None
        try:
            try:
                request = _Request.model_validate(message)
            except ValidationError as error:
                what = error.errors()[0]
                where = ".".join(map(str, what["loc"]))[:80]
                raise JsonRpcError(INVALID, f"Invalid Request: {where}: {what['msg']}") from None
            method = self._methods.get(request.method)
            if method is None:
                raise JsonRpcError(UNKNOWN_METHOD, f"Method not found: {request.method[:80]}")
            return _response(request.id, result=await self._run(method, request.params, own))
        except JsonRpcError as error:
            return _response(identity, error={"code": error.code, "message": str(error), "data": error.data})

    async def _run(self, method: Any, params: dict[str, Any], own: str | None) -> Any:
        """Raises JsonRpcError for whatever goes wrong."""
        try:
            return await method(params, own)
        except (UnknownSession, EpisodeLost, BadRequest) as error:
            raise JsonRpcError(PARAMS, str(error)) from error
        except AtCapacity as error:
            raise JsonRpcError(SERVER, str(error), capacity(self._verbs, self._env)) from error
        except EnvironmentNotOpened as error:
            raise JsonRpcError(SERVER, str(error), {"factory_name": self._env}) from error
        except SessionBusy as error:
            raise JsonRpcError(INVALID, f"{error}; retry") from error
        except EnvironmentFailure as error:
            raise JsonRpcError(INTERNAL, str(error), {"code": error.code}) from error
        except JsonRpcError:
            raise
        except Exception as error:
            logging.getLogger(__name__).exception("a JSON-RPC request met a bug of the server")
            raise JsonRpcError(INTERNAL, f"the server has a bug: {type(error).__name__}") from error

    async def _list(self, params: dict[str, Any], own: str | None) -> Any:
        if (session_id := _session_of(params, required=False)) is not None:
            await done(self._verbs.state(self._env, session_id))
        return {"tools": tools_of(self.tools())}

    async def tools_call(self, params: dict[str, Any], own: str | None) -> Any:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            raise JsonRpcError(PARAMS, "tools/call needs `name`, the tool's")
        if not isinstance(arguments, dict | None):
            raise JsonRpcError(PARAMS, "`arguments` of tools/call is an object")
        known = [tool.name for tool in self.tools()]
        if name not in known:
            raise JsonRpcError(PARAMS, f"{self._env} has no tool {name[:80]!r}; it has {', '.join(known)}")
        return await self.call(name, arguments or {}, _session_of(params, required=False) or own)

    async def call(self, name: str, arguments: dict[str, Any], session_id: str | None) -> dict[str, Any]:
        """Call a tool in a session, beginning an episode when it has none; without one, in a fresh environment.

        Raises EnvironmentFailure.
        """
        fresh, begun = session_id is None, None
        if session_id is None:
            begun = json.loads(await done(self._verbs.reset(self._env, ResetRequest())))
            session_id = str(begun["session_id"])
        elif json.loads(await done(self._verbs.state(self._env, session_id)))["episode_id"] is None:
            begun = json.loads(await done(self._verbs.reset(self._env, ResetRequest(session_id=session_id))))
        try:
            step = StepRequest(session_id=session_id, action=WireAction(tool=name, arguments=arguments))
            reply = json.loads(await done(self._verbs.step(self._env, step)))
            return tool_result(reply, begun["observation"].get("text", "") if begun else "")
        finally:
            if fresh:
                await done(self._verbs.close(self._env, SessionRequest(session_id=session_id)))

    async def _create(self, params: dict[str, Any], own: str | None) -> Any:
        return {"session_id": json.loads(await done(self._verbs.open(self._env)))["session_id"]}

    async def _close(self, params: dict[str, Any], own: str | None) -> Any:
        session_id = _session_of(params, required=True)
        assert session_id is not None
        if self._attachments.has(self._env, session_id):
            self._attachments.close_later(self._env, session_id)
            return {"session_id": session_id, "closed": False, "closing": True}
        await done(self._verbs.lookup(self._env, session_id))  # closing a session that never was is a mistake
        await done(self._verbs.close(self._env, SessionRequest(session_id=session_id)))
        return {"session_id": session_id, "closed": True}

    def tools(self) -> tuple[ToolSpec, ...]:
        tools = self._verbs.spec(self._env).tools
        if not tools:
            raise JsonRpcError(INTERNAL, "Environment does not support MCP: its actions are text, not tools")
        return tools


def capacity(verbs: EnvBackend, env: str) -> dict[str, Any]:
    """Return the text of OpenEnv's servers for "no room"."""
    health = verbs.health(env)
    return {"active_sessions": health["sessions"], "max_sessions": health["max_sessions"]}


def _session_of(params: dict[str, Any], *, required: bool) -> str | None:
    session_id = params.get("session_id")
    if not isinstance(session_id, str | None) or (required and session_id is None):
        raise JsonRpcError(PARAMS, "`session_id` is missing or not a string")
    return session_id


def tool_result(reply: dict[str, Any], opening: str = "") -> dict[str, Any]:
    """A step's reply as the result of a tool call, in the snake_case of OpenEnv's servers.

    `opening`: what the episode opened with, if the call began it.
    """
    text = reply["observation"].get("text", "")
    content: list[dict[str, Any]] = [{"type": "text", "text": text, "annotations": None, "meta": None}]
    if reply["observation"].get("image") is not None:
        content.append({"type": "image", "data": reply["observation"]["image"], "mimeType": "image/png"})
    begun = {"opening": opening} if opening else {}
    kept = ("reward", "done", "terminated", "truncated", "info", "step")
    return {
        "content": content,
        "structured_content": {"result": text, **{key: reply[key] for key in kept if key in reply}, **begun},
        "data": text,
        "is_error": False,
        "meta": None,
    }


def refused(why: str) -> bytes:
    """Return the response to a frame that is not looked at."""
    return _response(None, error={"code": SERVER, "message": why, "data": None})


def _response(identity: Any, **outcome: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": identity, **outcome})
