"""HTTP replies of every route: bytes out, and what goes wrong as a WireError."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from agentgym.errors import AgentGymError, AtCapacity, BadRequest, EnvironmentFailure
from agentgym.protocol import WireError
from agentgym_servers.web.encoding import encode
from agentgym_servers.web.parsing import NotJson, failure, validation_error
from agentgym_servers.web.turns import turn_for

CODES = {400: "BAD_REQUEST", 403: "FORBIDDEN", 404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}

Handler = Callable[[Request], Awaitable[Response]]


class TooLarge(AgentGymError):
    """A body beyond the server's limit."""


async def body_of(request: Request, largest: int) -> bytes:
    """Raises TooLarge."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > largest:
            raise TooLarge(f"a request may have {largest} bytes, this one has more")
    await turn_for(len(body))
    return bytes(body)


EXPECTED_ERRORS = (EnvironmentFailure, ValidationError, NotJson, TooLarge)
"""Errors that handlers raise to refuse a request."""


def error_response(error: Exception) -> tuple[int, bytes, dict[str, str]]:
    """The status, body and headers that tell an error of `EXPECTED_ERRORS`."""
    if isinstance(error, EnvironmentFailure):
        headers = {"Retry-After": str(error.retry_after_s)} if isinstance(error, AtCapacity) else {}
        return error.status, failure(error), headers
    if isinstance(error, ValidationError | NotJson):
        return BadRequest.status, validation_error(error), {}
    return 413, WireError(code="BODY_TOO_LARGE", message=str(error)).model_dump_json().encode(), {}


def handle_errors(handler: Handler) -> Handler:
    """Turn what the handler raises on purpose into a WireError with its status."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except EXPECTED_ERRORS as error:
            status, body, headers = error_response(error)
            return reply_json(body, status, headers)
        except ClientDisconnect:  # in the middle of its request: nobody is left to read an answer
            return Response(status_code=400)

    answer.__name__ = handler.__name__  # type: ignore[attr-defined]  # names the operation in /openapi.json
    return answer


def reply_json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")


def reply_dump(content: Any) -> Response:
    return reply_json(encode(content))


def reply_error(status: int, code: str, message: str, **more: Any) -> Response:
    return reply_json(encode({**WireError(code=code, message=message).model_dump(), **more}), status)


def add_error_replies(app: FastAPI) -> None:
    """Add replies for what no handler answers: unknown paths and methods, and our bugs."""
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _internal_error)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = CODES.get(error.status_code, "HTTP_ERROR")
    message = f"{error.detail}; GET /envs lists this server's environments"
    return reply_error(error.status_code, code, message, detail=error.detail)


async def _internal_error(_: Request, error: Exception) -> Response:
    return reply_error(500, "INTERNAL_ERROR", f"the server has a bug: {type(error).__name__}; its log says more")


async def send_error(scope: Any, receive: Any, send: Any, status: int, code: str, message: str) -> None:
    """Answer an HTTP request, or a WebSocket handshake instead of accepting it, with an error."""
    body = WireError(code=code, message=message).model_dump_json().encode()
    kind = "http.response"
    if scope["type"] == "websocket":
        await receive()
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": code})
            return
        kind = "websocket.http.response"
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})
