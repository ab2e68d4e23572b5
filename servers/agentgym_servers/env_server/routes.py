"""Every route of a server, over any `EnvBackend`: a request in, the reply's bytes out."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal
from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response
from pydantic import ValidationError

from agentgym.protocol import VERBS, ResetRequest, SessionRequest, StatelessStepRequest, StepManyRequest, StepRequest
from agentgym.spec import EnvSpec
from agentgym_servers.env_server.attachments import Attachments
from agentgym_servers.env_server.mcp import Streamable
from agentgym_servers.env_server.metadata import metadata_of, schema_of
from agentgym_servers.env_server.openenv_websocket import OpenEnvMcpSocket, OpenEnvSocket
from agentgym_servers.env_server.task_api import add_task_routes
from agentgym_servers.env_server.websocket import Multiplex
from agentgym_servers.web.backend import (
    FRESH_STATE,
    BackendReply,
    EnvBackend,
    done,
    entry_bytes,
    entry_of,
    env_of,
    method_of,
)
from agentgym_servers.web.encoding import array, encode, wrapped
from agentgym_servers.web.fast_path import Call, FastPathMiddleware
from agentgym_servers.web.parsing import has_many, parse
from agentgym_servers.web.responses import (
    Handler,
    add_error_replies,
    body_of,
    handle_errors,
    reply_dump,
    reply_json,
)
from agentgym_servers.web.turns import turns
from agentgym_servers.web.websocket_handler import METER, serve_websocket

__all__ = ["Mode", "add_routes", "reply_json"]

Mode = Literal["simulation", "production"]
"""OpenEnv's: in production there is neither HTTP reset nor step nor state, only sockets, tools and descriptions."""


def add_routes(
    app: FastAPI,
    verbs: EnvBackend,
    *,
    max_body_bytes: int,
    root: bool = True,
    lease_s: float = 600.0,
    mode: Mode = "simulation",
) -> None:
    """Serve `verbs` under /envs/{name}/ and, with `root`, its first environment at the root.

    `lease_s` is what the server promises; `max_body_bytes` bounds requests and frames.
    """
    front = _Handlers(verbs, max_body_bytes, lease_s)
    app.state.max_body_bytes = max_body_bytes
    calls: dict[tuple[str, str], Call] = {
        ("GET", "health"): front.health,
        ("GET", "metadata"): front.metadata,
        ("GET", "schema"): front.schema,
    }
    if mode == "simulation":
        calls |= {("POST", verb): front.plain(verb) for verb in VERBS if verb not in ("step", "step_many")}
        calls |= {("POST", "step"): front.step, ("POST", "step_many"): front.step_many}
    for prefix in ("", "/envs/{name}") if root else ("/envs/{name}",):
        for (method, last), call in calls.items():
            app.add_api_route(f"{prefix}/{last}", front.route(last, call), methods=[method], **_described(last))
        if mode == "simulation":
            app.add_api_route(f"{prefix}/state", handle_errors(front.state), methods=["GET"], response_model=None)
            path = f"{prefix}/sessions/{{session_id}}"
            app.add_api_route(path, handle_errors(front.lookup), methods=["GET"], response_model=None)
        app.add_api_route(f"{prefix}/mcp", handle_errors(front.mcp), methods=["POST"], response_model=None)
        app.add_api_route(f"{prefix}/mcp", handle_errors(front.mcp_end), methods=["DELETE"], response_model=None)
        add_task_routes(app, verbs, prefix, max_body_bytes)
    app.add_api_route("/envs", handle_errors(front.envs), methods=["GET"], response_model=None)
    add_error_replies(app)
    sockets = {"ws": front.ws, "mcp": front.ws_mcp}
    app.add_middleware(
        FastPathMiddleware,
        verbs=verbs,
        calls=calls,
        sockets=sockets,
        root=root,
        largest=max_body_bytes,
        long=("step", "step_many", "restore"),
    )


def _described(verb: str) -> dict[str, Any]:
    """Return the description of a verb for /openapi.json."""
    if verb not in VERBS:
        return {"response_model": None}
    schema = {"content": {"application/json": {"schema": VERBS[verb].request.model_json_schema()}}}
    responses = {200: {"model": VERBS[verb].reply}}
    return {"response_model": None, "responses": responses, "openapi_extra": {"requestBody": schema}}


class _Handlers:
    """The handlers."""

    def __init__(self, verbs: EnvBackend, max_body_bytes: int, lease_s: float) -> None:
        self.verbs, self.max_body_bytes, self.lease_s = verbs, max_body_bytes, lease_s
        self.attachments = Attachments(verbs, lease_s)
        self._metadata: dict[str, tuple[EnvSpec, bytes]] = {}
        """Metadata by environment: every client asks for it."""

    def plain(self, verb: str) -> Call:
        """A verb whose body is read, passed on and answered."""
        model, ask = VERBS[verb].request, method_of(self.verbs, VERBS[verb])

        async def call(env: str, raw: bytes) -> bytes:
            return await done(ask(env, parse(model, raw or b"{}")))

        return call

    async def step(self, env: str, raw: bytes) -> bytes:
        try:
            body = parse(StepRequest, raw)
        except ValidationError as error:
            if has_many(error) or all(entry["loc"] != ("session_id",) for entry in error.errors()):
                raise
            return await self._stateless(env, parse(StatelessStepRequest, raw))
        return await done(self.verbs.step(env, body))

    async def _stateless(self, env: str, body: StatelessStepRequest) -> bytes:
        """OpenEnv's step over HTTP: a fresh environment, one step, closed. Ours need a reset before."""
        session_id = json.loads(await done(self.verbs.reset(env, ResetRequest())))["session_id"]
        try:
            step = StepRequest(session_id=session_id, action=body.action, timeout_s=body.timeout_s)
            return await done(self.verbs.step(env, step))
        finally:
            await done(self.verbs.close(env, SessionRequest(session_id=session_id)))

    async def step_many(self, env: str, raw: bytes) -> bytes:
        body = parse(StepManyRequest, raw)
        entries: list[BackendReply] = []
        here = turns()
        for step in body.steps:
            if here.over():
                await here.mine()
            entries.append(entry_of(self.verbs, env, step))
        running = {entry for entry in entries if isinstance(entry, asyncio.Future)}
        ready = sum(isinstance(entry, bytes) for entry in entries)
        while running and ready < body.wait_for:
            _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            ready = sum(isinstance(entry, bytes) or entry.done() for entry in entries)
        if running:
            await asyncio.wait(running, timeout=body.wait_s)
        return wrapped({}, "results", array(map(entry_bytes, entries)))

    async def mcp(self, request: Request) -> Response:
        mcp = Streamable(self.verbs, self._env(request), self.attachments)
        return await mcp.post(await body_of(request, self.max_body_bytes), request.headers, request.query_params)

    async def mcp_end(self, request: Request) -> Response:
        return await Streamable(self.verbs, self._env(request), self.attachments).delete(request.headers)

    def route(self, name: str, call: Call) -> Handler:
        """The handler where the way in leaves a request to the router."""

        async def handle(request: Request) -> Response:
            return reply_json(await call(self._env(request), await body_of(request, self.max_body_bytes)))

        handle.__name__ = name
        return handle_errors(handle)

    async def health(self, env: str, _: bytes) -> bytes:
        return encode(self.verbs.health(env))

    async def metadata(self, env: str, _: bytes) -> bytes:
        spec = self.verbs.spec(env)
        known = self._metadata.get(env)
        if known is None or known[0] is not spec:
            known = self._metadata[env] = spec, encode(metadata_of(spec))
        return known[1]

    async def schema(self, env: str, _: bytes) -> bytes:
        return encode(schema_of(self.verbs.spec(env)))

    async def state(self, request: Request) -> Response:
        env, session_id = self._env(request), request.query_params.get("session_id")
        return reply_json(FRESH_STATE if session_id is None else await done(self.verbs.state(env, session_id)))

    async def lookup(self, request: Request) -> Response:
        return reply_json(await done(self.verbs.lookup(self._env(request), request.path_params["session_id"])))

    async def envs(self, request: Request) -> Response:
        specs = {name: self.verbs.spec(name) for name in self.verbs.names()}
        listed = [
            {"name": name, "path": f"/envs/{name}", "description": spec.description, "version": spec.version}
            for name, spec in specs.items()
        ]
        return reply_dump({"environments": listed})

    async def ws(self, env: str, scope: Any, receive: Any, send: Any) -> None:
        query, meter = parse_qs(scope["query_string"].decode("latin-1")), scope.get(METER)
        if query.get("ext") == ["1"]:
            largest = self.max_body_bytes
            conversation = Multiplex(self.verbs, env, lease_s=self.lease_s, max_frame_bytes=largest, meter=meter)
        else:
            session_id = query.get("session_id", [None])[-1]
            conversation = OpenEnvSocket(self.verbs, env, self.attachments, session_id, meter)
        await serve_websocket(scope, receive, send, conversation)

    async def ws_mcp(self, env: str, scope: Any, receive: Any, send: Any) -> None:
        conversation = OpenEnvMcpSocket(self.verbs, env, self.attachments, scope.get(METER))
        await serve_websocket(scope, receive, send, conversation)

    def _env(self, request: Request) -> str:
        return env_of(self.verbs, request.path_params.get("name"))
