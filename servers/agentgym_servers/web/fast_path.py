"""The way in: the verbs and sockets are answered at once.

FastAPI's way from a request to its handler costs several times a cheap environment's step; its routes remain for
everything else, and to describe these in /openapi.json.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from starlette.exceptions import HTTPException

from agentgym_servers.web.backend import EnvBackend, env_of
from agentgym_servers.web.responses import EXPECTED_ERRORS, TooLarge, error_response, send_error
from agentgym_servers.web.turns import turn_for

NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False}
"""FastAPI's own: its check at each request takes a ninth of a cheap environment's step."""
SHORT = 128 * 2**10
"""Bytes of a request that names a session or a task."""

Call = Callable[[str, bytes], Awaitable[bytes]]
"""An environment and a request's body in, the reply's body out."""


class FastPathMiddleware:
    """ASGI middleware before the router; what others add must come before it."""

    def __init__(
        self,
        app: Any,
        verbs: EnvBackend,
        calls: Mapping[tuple[str, str], Call],
        sockets: Mapping[str, Any],
        root: bool,
        largest: int,
        long: Collection[str] = (),
    ) -> None:
        """`calls` by method and the path below the environment, `sockets` by path; `root`: whether the first
        environment is at /.

        A request has at most `largest` bytes, and unless its path is one of `long` at most `SHORT`.
        """
        self._long = frozenset(long)
        self._app, self._verbs, self._calls, self._sockets = app, verbs, calls, sockets
        self._root, self._largest = root, largest

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        kind = scope["type"]
        if kind == "lifespan":
            await self._app(scope, receive, send)
            return
        name, last = _split(scope["path"])
        call: Any = self._sockets.get(last) if kind == "websocket" else self._calls.get((scope["method"], last))
        if call is None or (name is None and not self._root) or scope.get("root_path"):
            await self._app(scope, receive, send)
            return
        try:
            env = env_of(self._verbs, name)
        except HTTPException as error:
            await send_error(scope, receive, send, error.status_code, "NOT_FOUND", error.detail)
            return
        if kind == "websocket":
            await call(env, scope, receive, send)
        else:
            await self._answer(env, call, self._largest if last in self._long else SHORT, receive, send)

    async def _answer(self, env: str, call: Call, largest: int, receive: Any, send: Any) -> None:
        largest = min(largest, self._largest)
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > largest:
                break
        try:
            if len(body) > largest:
                raise TooLarge(f"this request may have {largest} bytes, and it has more")
            await turn_for(len(body))
            status, reply, more_headers = 200, await call(env, bytes(body)), {}
        except EXPECTED_ERRORS as error:
            status, reply, more_headers = error_response(error)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(reply))]
        headers += [(name.lower().encode(), value.encode()) for name, value in more_headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": reply})


def _split(path: str) -> tuple[str | None, str]:
    """The environment that a path names, None at the root, and what comes below it."""
    if not path.startswith("/envs/"):
        return None, path[1:]
    name, _, last = path[6:].partition("/")
    return name, last
