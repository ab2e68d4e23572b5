"""The Model Context Protocol's Streamable HTTP transport on `/mcp`, for clients that speak MCP and nothing of ours.

    POST    initialize              begins a session and an episode; the query names it: /mcp?split=test&index=5&seed=0
    POST    tools/list, tools/call  in that session; a call is a step
    DELETE                          ends it

`instructions` of the answer to initialize are the environment's, and what the episode opens with. The session's id
comes back as the header Mcp-Session-Id. There is no stream to GET: an environment says nothing unless it is asked. What
comes without that header and does not initialize is OpenEnv's (`openenv_rpc.py`).

https://modelcontextprotocol.io/specification/2025-11-25/basic/transports
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Response
from pydantic import ValidationError

from agentgym import __version__
from agentgym.errors import BadRequest, EpisodeLost, UnknownSession
from agentgym.protocol import ResetRequest, SessionRequest
from agentgym_servers.env_server.attachments import Attachments
from agentgym_servers.env_server.openenv_rpc import PARAMS, JsonRpcError, Rpc
from agentgym_servers.web.backend import EnvBackend, done
from agentgym_servers.web.parsing import NotJson, read
from agentgym_servers.web.responses import reply_error, reply_json

HEADER = "Mcp-Session-Id"
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Versions of the protocol, newest first; they do not differ in what is served here."""


class Streamable:
    """Answers one environment's requests."""

    def __init__(self, verbs: EnvBackend, env: str, attachments: Attachments) -> None:
        self._verbs, self._env, self._attachments = verbs, env, attachments
        self._openenv = Rpc(verbs, env, attachments)

    async def post(self, raw: bytes, headers: Mapping[str, str], query: Mapping[str, str]) -> Response:
        session_id = headers.get(HEADER)
        if (method := _method(raw)).startswith("notifications/"):
            return Response(status_code=202)
        if method == "initialize" and session_id is None:
            return await self._initialize(raw, query)
        if session_id is None:
            return reply_json(await self._openenv.raw(raw))
        if not await self._exists(session_id):
            return reply_error(404, "UNKNOWN_SESSION", "this session has ended: initialize again")
        mcp = Rpc(self._verbs, self._env, self._attachments, {"ping": _ping, "tools/call": self._call})
        return reply_json(await mcp.raw(raw, session_id))

    async def delete(self, headers: Mapping[str, str]) -> Response:
        session_id = headers.get(HEADER)
        if session_id is None or not await self._exists(session_id):
            return reply_error(404, "UNKNOWN_SESSION", f"the header {HEADER} names no session")
        await done(self._verbs.close(self._env, SessionRequest(session_id=session_id)))
        return Response(status_code=204)

    async def _initialize(self, raw: bytes, query: Mapping[str, str]) -> Response:
        headers: dict[str, str] = {}

        async def begin(params: dict[str, Any], _: str | None) -> dict[str, Any]:
            self._openenv.tools()
            try:
                body = ResetRequest.model_validate(dict(query))
            except ValidationError as error:
                what = error.errors()[0]
                raise JsonRpcError(PARAMS, f"the query chooses the episode: {what['loc'][0]}: {what['msg']}") from None
            reply = json.loads(await done(self._verbs.reset(self._env, body)))
            headers[HEADER] = reply["session_id"]
            spec, version = self._verbs.spec(self._env), params.get("protocolVersion")
            return {
                "protocolVersion": version if version in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": f"agentgym/{self._env}", "version": __version__},
                "instructions": f"{spec.instructions.strip()}\n\n{reply['observation'].get('text', '')}",
            }

        rpc = Rpc(self._verbs, self._env, self._attachments, {"initialize": begin})
        return reply_json(await rpc.raw(raw), headers=headers)

    async def _call(self, params: dict[str, Any], own: str | None) -> dict[str, Any]:
        """Call a tool, with the field names of MCP.

        A call that the environment does not take is an error for the model to see.
        """
        result = await self._openenv.tools_call(params, own)
        content = [{key: value for key, value in part.items() if value is not None} for part in result["content"]]
        answer = result["structured_content"]
        refused = answer.get("info", {}).get("valid_action") is False
        return {"content": content, "structuredContent": answer, "isError": refused}

    async def _exists(self, session_id: str) -> bool:
        try:
            await done(self._verbs.lookup(self._env, session_id))
        except (UnknownSession, EpisodeLost, BadRequest):
            return False
        return True


def _method(raw: bytes) -> str:
    """Empty where there is none; the Rpc says what is wrong."""
    try:
        message = read(raw)
    except NotJson:
        return ""
    method = message.get("method") if isinstance(message, dict) else None
    return method if isinstance(method, str) else ""


async def _ping(params: dict[str, Any], own: str | None) -> dict[str, Any]:
    return {}
