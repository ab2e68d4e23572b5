"""Reading a POST's body: whole, bounded, checked; and a route that says in /openapi.json what it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from agentgym_servers.inference.parsing import ApiError, validation_error
from agentgym_servers.web.cross_origin import foreign
from agentgym_servers.web.turns import turn_for

BodyT = TypeVar("BodyT", bound=BaseModel)


def add_post(app: FastAPI, path: str, kind: type[BaseModel], handler: Callable[..., Any]) -> None:
    schema = {"requestBody": {"content": {"application/json": {"schema": kind.model_json_schema()}}}}
    app.add_api_route(path, handler, methods=["POST"], response_model=None, openapi_extra=schema)


async def read_body(request: Request, kind: type[BodyT], limit: int, problem: str) -> BodyT:
    """Raises ApiError: 403 for a web page's, 413 beyond `limit` bytes (`problem` says why), 400 for what is wrong."""
    if (page := foreign(request.scope)) is not None:
        raise ApiError(403, f"a page from {page[:200]} may not use this server: only programs may", code="forbidden")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            code = "context_length_exceeded"
            raise ApiError(413, f"{problem}; a request of more than {limit} bytes cannot fit", code=code)
    await turn_for(len(body))
    try:
        from_json(body, allow_inf_nan=False)  # NaN is no JSON, wherever it stands
        return kind.model_validate_json(bytes(body))
    except ValidationError as error:
        raise validation_error(error) from error
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from error
