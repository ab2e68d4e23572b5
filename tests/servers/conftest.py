"""A bare client of an application in this process, so that a test says exactly what crosses the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest


class Api:
    """POST and GET; `post` gives (status, JSON)."""

    def __init__(self, app: Any, prefix: str = "") -> None:
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://world{prefix}")

    async def post(self, path: str, **body: Any) -> tuple[int, Any]:
        reply = await self.http.post(path, json=body)
        return reply.status_code, reply.json()

    async def get(self, path: str) -> tuple[int, Any]:
        reply = await self.http.get(path)
        return reply.status_code, reply.json()

    async def begin(self, **body: Any) -> str:
        """The id of a new session."""
        status, reply = await self.post("/reset", **{"index": 0, **body})
        assert status == 200, reply
        return reply["session_id"]

    async def step(self, session_id: str, text: str = "apple", step: int | None = None, **more: Any) -> tuple[int, Any]:
        body = {"session_id": session_id, "action": {"text": text}, **more}
        return await self.post("/step", **body, **({} if step is None else {"step": step}))


@pytest.fixture
def play() -> Callable[..., Any]:
    """`play(app, script)` runs `async def script(api)` against the application and returns its result."""

    def run(app: Any, script: Callable[[Api], Awaitable[Any]], prefix: str = "") -> Any:
        async def main() -> Any:
            api = Api(app, prefix)
            async with api.http:
                return await script(api)

        return asyncio.run(main())

    return run
