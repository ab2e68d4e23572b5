"""The environment server: worlds behind HTTP. `create_app` makes the application, `python -m` runs it.

    python -m agentgym_servers.environment agentgym.testing:EchoEnv --port 8000

Each world answers under `/envs/NAME/...`, the first also at the root: POST /reset /step /step_many /close /expert
/hint /snapshot /restore, GET /health /metadata /schema. GET /envs lists the worlds. Every reply that is not 2xx is a
`WireError`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import binascii
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route

from agentgym.errors import AgentGymError, AtCapacity, BadRequest, EnvironmentFailure, EpisodeLost, UsageError
from agentgym.wire import (
    ActionReply,
    HintReply,
    ResetRequest,
    RestoreRequest,
    SessionReply,
    SessionRequest,
    SnapshotReply,
    StepManyReply,
    StepManyRequest,
    StepReply,
    StepRequest,
    WireAction,
    WireError,
)
from agentgym_servers.sessions import Sessions
from agentgym_servers.world import Factory, World, worlds_of

PROTOCOL = "1"
RETRY_AFTER_S = 1
"""What a server without room tells its clients to wait."""
SWEEP_S = 5.0
"""Leases are looked through at least this often."""

Handler = Callable[[Request], Awaitable[Response]]
Parsed = TypeVar("Parsed", bound=BaseModel)


class _TooLarge(AgentGymError):
    pass


def create_app(
    worlds: Sequence[str] | Mapping[str, Factory],
    *,
    max_sessions: int = 1024,
    lease_s: float = 600.0,
    replies_kept: int = 4,
    max_body_bytes: int = 16 * 2**20,
    clock: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """An application that serves `worlds`: ids or "package.module:Class", or names with factories.

    A session that nobody uses for `lease_s` seconds ends. Of each session the last `replies_kept` step replies are
    kept for retries. `clock` (seconds) is for tests. Raises UsageError for a world that cannot be served.
    """
    sessions = Sessions(max_sessions=max_sessions, lease_s=lease_s, replies_kept=replies_kept, clock=clock)
    server = EnvironmentServer(worlds_of(worlds), sessions, max_body_bytes)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        reaper = asyncio.create_task(_reap(sessions))
        try:
            yield
        finally:
            reaper.cancel()
            sessions.close_all()

    app = FastAPI(title="AgentGym environment server", version="1.0.0", lifespan=lifespan)
    app.state.sessions = sessions
    for prefix in ("", "/envs/{name}"):
        # The two hot paths skip FastAPI's machinery; the routes below describe them in /openapi.json.
        app.router.routes.append(Route(f"{prefix}/step", _answering(server.step), methods=["POST"]))
        app.router.routes.append(Route(f"{prefix}/step_many", _answering(server.step_many), methods=["POST"]))
        for verb, (body, reply) in _VERBS.items():
            handler = _answering(getattr(server, verb))
            app.add_api_route(
                f"{prefix}/{verb}",
                handler,
                methods=["POST"],
                response_model=None,
                responses={200: {"model": reply}},
                openapi_extra={"requestBody": {"content": {"application/json": {"schema": body.model_json_schema()}}}},
            )
        for verb in ("health", "metadata", "schema"):
            app.add_api_route(
                f"{prefix}/{verb}", _answering(getattr(server, verb)), methods=["GET"], response_model=None
            )
    app.add_api_route("/envs", _answering(server.envs), methods=["GET"], response_model=None)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(Exception, _internal_error)
    return app


_VERBS: dict[str, tuple[type[BaseModel], type[BaseModel]]] = {
    "reset": (ResetRequest, StepReply),
    "step": (StepRequest, StepReply),
    "step_many": (StepManyRequest, StepManyReply),
    "close": (SessionRequest, SessionReply),
    "expert": (SessionRequest, ActionReply),
    "hint": (SessionRequest, HintReply),
    "snapshot": (SessionRequest, SnapshotReply),
    "restore": (RestoreRequest, SessionReply),
}


class EnvironmentServer:
    """The handlers: a request in, the reply's bytes out."""

    def __init__(self, worlds: dict[str, World], sessions: Sessions, max_body_bytes: int) -> None:
        self.worlds, self.sessions, self.max_body_bytes = worlds, sessions, max_body_bytes
        self._first = next(iter(worlds.values()))

    async def reset(self, request: Request) -> Response:
        world, body = self._world(request), await self._parse(request, ResetRequest)
        if body.session_id is not None:
            session = self.sessions.find(world, body.session_id)
        else:
            session = self._begun(world, body.episode_id) or self.sessions.open(world)
        return _json(await _done(session.reset(body)))

    async def step(self, request: Request) -> Response:
        world, body = self._world(request), await self._parse(request, StepRequest)
        return _json(await _done(self._step(world, body)))

    async def step_many(self, request: Request) -> Response:
        world, body = self._world(request), await self._parse(request, StepManyRequest)
        entries = [_entry(self._step, world, step) for step in body.steps]
        running = {entry for entry in entries if isinstance(entry, asyncio.Task)}
        if running and len(running) == len(set(map(id, entries))):  # nothing is ready: wait for the first
            _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        if running:
            await asyncio.wait(running, timeout=body.wait_s)
        return _json(b'{"results":[%s]}' % b",".join(map(_entry_bytes, entries)))

    async def close(self, request: Request) -> Response:
        world, body = self._world(request), await self._parse(request, SessionRequest)
        with contextlib.suppress(EpisodeLost):  # closed already: asking twice is no mistake
            self.sessions.end(self.sessions.find(world, body.session_id), "it was closed")
        return _model(SessionReply(session_id=body.session_id, closed=True))

    async def expert(self, request: Request) -> Response:
        session_id, action = await self._ask(request, "expert", "expert")
        return _model(ActionReply(session_id=session_id, action=WireAction.of(action)))

    async def hint(self, request: Request) -> Response:
        session_id, hint = await self._ask(request, "hint", "hint")
        return _model(HintReply(session_id=session_id, hint=hint))

    async def snapshot(self, request: Request) -> Response:
        session_id, state = await self._ask(request, "snapshot", "snapshot")
        return _model(SnapshotReply(session_id=session_id, snapshot=base64.b64encode(state).decode()))

    async def restore(self, request: Request) -> Response:
        world, body = self._world(request), await self._parse(request, RestoreRequest)
        world.require("snapshot")
        try:
            state = base64.b64decode(body.snapshot, validate=True)
        except binascii.Error as error:
            raise BadRequest(f"a snapshot is base64, as /snapshot gave it: {error}") from error
        session = self._begun(world, body.episode_id) or self.sessions.open(world)
        return _json(await _done(session.restore(state, body.episode_id)))

    async def health(self, request: Request) -> Response:
        world, sessions = self._world(request), self.sessions
        counts = {
            "sessions": len(sessions.live),
            "stuck": len(sessions.stuck),
            "max_sessions": sessions.max_sessions,
        }
        full_of_stuck = len(sessions.stuck) >= sessions.max_sessions
        return _dump({"status": "unhealthy" if full_of_stuck else "healthy", "world": world.name, **counts})

    async def metadata(self, request: Request) -> Response:
        spec = self._world(request).spec
        extensions = ["sessions", "exactly_once", "step_many", "leases", *spec.capabilities]
        return _dump(
            {
                "name": spec.id,
                "description": spec.description,
                "readme_content": None,
                "version": spec.version,
                "author": None,
                "documentation_url": None,
                "agentgym": {"protocol": PROTOCOL, "spec": spec.model_dump(mode="json"), "extensions": extensions},
            }
        )

    async def schema(self, request: Request) -> Response:
        seen = "image" in self._world(request).spec.observations
        fields = {"text": {"type": "string"}, "metadata": {"type": "object"}}
        if seen:
            fields["image"] = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}
        observation = {
            "title": "Observation",
            "type": "object",
            "properties": fields,
            "required": ["text", *(["image"] if seen else [])],
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
        return _dump({"action": action, "observation": observation, "state": state, "reset_observation": observation})

    async def envs(self, request: Request) -> Response:
        listed = [
            {
                "name": name,
                "path": f"/envs/{name}",
                "description": world.spec.description,
                "version": world.spec.version,
            }
            for name, world in self.worlds.items()
        ]
        return _dump({"environments": listed})

    def _step(self, world: World, body: StepRequest) -> bytes | asyncio.Task[bytes]:
        session = self.sessions.find(world, body.session_id)
        try:
            action = body.action.value()
        except ValueError as error:
            raise BadRequest(str(error)) from error
        return session.step(body, action)

    async def _ask(self, request: Request, method: str, capability: str) -> tuple[str, Any]:
        world, body = self._world(request), await self._parse(request, SessionRequest)
        session = self.sessions.find(world, body.session_id)
        return session.id, await _done(session.ask(method, capability))

    def _begun(self, world: World, episode_id: str | None) -> Any:
        """The live session that an earlier request with the same episode id opened."""
        session = self.sessions.episodes.get((world.name, episode_id)) if episode_id is not None else None
        return session and self.sessions.find(world, session.id)

    def _world(self, request: Request) -> World:
        name = request.path_params.get("name")
        if name is None:
            return self._first
        if name not in self.worlds:
            raise HTTPException(404, f"this server has no world {name!r}; it has {', '.join(self.worlds)}")
        return self.worlds[name]

    async def _parse(self, request: Request, model: type[Parsed]) -> Parsed:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self.max_body_bytes:
                raise _TooLarge(f"a request may have {self.max_body_bytes} bytes, this one has more")
        return model.model_validate_json(bytes(body) or b"{}")


async def _done(result: bytes | asyncio.Task[Any]) -> Any:
    """The task belongs to the session: that the client went away must not cancel it."""
    return await asyncio.shield(result) if isinstance(result, asyncio.Task) else result


def _entry(step: Callable[..., bytes | asyncio.Task[bytes]], world: World, body: StepRequest) -> Any:
    try:
        return step(world, body)
    except EnvironmentFailure as error:
        return WireError.of(error).model_dump_json().encode()


def _entry_bytes(entry: bytes | asyncio.Task[bytes]) -> bytes:
    if isinstance(entry, bytes):
        return entry
    if not entry.done():
        return b"null"
    error = entry.exception()
    if error is None:
        return entry.result()
    if isinstance(error, EnvironmentFailure):
        return WireError.of(error).model_dump_json().encode()
    raise error


def _answering(handler: Handler) -> Handler:
    """Turn what the handler raises on purpose into a WireError with its status."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except EnvironmentFailure as error:
            headers = {"Retry-After": str(RETRY_AFTER_S)} if isinstance(error, AtCapacity) else None
            return _json(WireError.of(error).model_dump_json().encode(), error.status, headers)
        except ValidationError as error:
            return _refused(error.errors(include_url=False, include_context=False))
        except _TooLarge as error:
            return _error(413, "BODY_TOO_LARGE", str(error))

    answer.__name__ = handler.__name__  # type: ignore[attr-defined]  # names the operation in /openapi.json
    return answer


def _refused(detail: Sequence[Any]) -> Response:
    """422 with our fields and, in `detail`, OpenEnv's list: an action's errors relative to it, others to the body."""
    entries = []
    for entry in detail:
        location = tuple(entry["loc"])
        inside = len(location) > 1 and location[0] == "action"
        entries.append({**entry, "loc": location[1:] if inside else ("body", *location)})
    where = "; ".join(f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in entries[:5])
    error = WireError.of(BadRequest(f"the request is not valid: {where}"))
    body = json.dumps({**error.model_dump(), "detail": entries}, default=repr)
    return _json(body.encode(), BadRequest.status)


def _error(status: int, code: str, message: str) -> Response:
    return _json(WireError(code=code, message=message).model_dump_json().encode(), status)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}.get(error.status_code, "HTTP_ERROR")
    return _error(error.status_code, code, f"{error.detail}; GET /envs lists this server's worlds")


async def _validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _refused(error.errors())


async def _internal_error(_: Request, error: Exception) -> Response:
    return _error(500, "INTERNAL_ERROR", f"the server has a bug: {type(error).__name__}: {error}")


def _json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")


def _dump(content: dict[str, Any]) -> Response:
    return _json(json.dumps(content).encode())


def _model(content: BaseModel) -> Response:
    return _json(content.model_dump_json().encode())


async def _reap(sessions: Sessions) -> None:
    while True:
        await asyncio.sleep(min(SWEEP_S, sessions.lease_s / 4))
        sessions.sweep()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve worlds until interrupted."""
    from agentgym_servers.serving import run_server

    parser = argparse.ArgumentParser(prog="python -m agentgym_servers.environment", description=main.__doc__)
    parser.add_argument("worlds", nargs="+", help='ids or "package.module:Class"')
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--max-sessions", type=int, default=1024)
    parser.add_argument("--lease-s", type=float, default=600.0)
    parser.add_argument("--die-with-stdin", action="store_true", help="stop when standard input ends")
    options = parser.parse_args(arguments)
    try:
        run_server(
            options.worlds,
            options.host,
            options.port,
            die_with_stdin=options.die_with_stdin,
            max_sessions=options.max_sessions,
            lease_s=options.lease_s,
        )
    except UsageError as error:
        sys.exit(f"agentgym: {error}")


if __name__ == "__main__":
    main()
