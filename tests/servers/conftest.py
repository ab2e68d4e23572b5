"""A bare client of an application in this process, so that a test says exactly what crosses the wire."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect


class Api:
    """POST and GET; `post` gives (status, JSON)."""

    def __init__(self, app: Any, prefix: str = "") -> None:
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://env{prefix}")

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
            async with app.router.lifespan_context(app), api.http:
                return await script(api)

        return asyncio.run(main())

    return run


class Wire:
    """A WebSocket: `say` sends a frame, an object as JSON, `hear` gives the next frame's JSON, `ask` does both."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def say(self, frame: Any) -> None:
        self.connection.send(frame if isinstance(frame, str | bytes | list) else json.dumps(frame))

    def hear(self) -> Any:
        return json.loads(self.connection.recv(timeout=20))

    def ask(self, frame: Any) -> Any:
        self.say(frame)
        return self.hear()

    def closed(self) -> int:
        """The code with which the server closes, when nothing else comes before."""
        with pytest.raises(ConnectionClosed) as closed:
            self.connection.recv(timeout=20)
        assert closed.value.rcvd is not None
        return closed.value.rcvd.code


@pytest.fixture
def dial() -> Iterator[Callable[..., Wire]]:
    """`dial(url + "/ws")` opens a WebSocket to a real server; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def open_wire(url: str, **options: Any) -> Wire:
            options = {"max_size": None, "proxy": None, **options}
            return Wire(stack.enter_context(connect(url.replace("http", "ws", 1), **options)))

        yield open_wire
