"""Requests to one server of an environment: over our socket where it has one, else lean ones over plain HTTP, or
httpx's."""

from __future__ import annotations

import asyncio
import logging

import httpx
import pydantic_core
from pydantic import ValidationError

from agentgym.clients.transports.http import HttpClient
from agentgym.clients.transports.http11 import HttpResponse, KeepAlive
from agentgym.clients.transports.websocket import WebSocketTransport
from agentgym.errors import ConfigError, DeadlineExceeded, EnvironmentFailure, Unreachable
from agentgym.protocol import WireError

CONNECT_AGAIN_S = 30.0
"""Seconds for which requests are used after a server refused its socket."""


class ReplicaClient:
    """Client of the server at `url`. It never retries: that is the caller's decision."""

    def __init__(self, url: str) -> None:
        parsed = httpx.URL(url)
        self.url = url.rstrip("/")
        self.prefix = parsed.raw_path.rstrip(b"/").decode()
        self._lean = KeepAlive(parsed.host, parsed.port or 80, parsed.netloc.decode())
        self._tls = (
            httpx.AsyncClient(headers={"content-type": "application/json"}) if parsed.scheme == "https" else None
        )
        self._channel: WebSocketTransport | None = None
        self._opening = asyncio.Lock()
        self._refused_at = -CONNECT_AGAIN_S

    async def request(
        self, verb: str, path: str, body: bytes | None, timeout_s: float, *, repeatable: bool = True
    ) -> HttpResponse:
        """Raises OSError: TimeoutError after `timeout_s`, ConnectionError when there is no whole reply."""
        if self._tls is None:
            target = (self.prefix + path).encode()
            return await self._lean.request(verb, target, body, timeout_s, repeatable=repeatable)
        try:
            reply = await self._tls.request(verb, self.url + path, content=body, timeout=timeout_s)
        except httpx.TimeoutException as error:
            raise TimeoutError(str(error)) from error
        except httpx.HTTPError as error:
            raise ConnectionError(str(error)) from error
        return HttpResponse(reply.status_code, dict(reply.headers), reply.content)

    async def ask(self, path: str, body: bytes | None, timeout_s: float, *, repeatable: bool = True) -> bytes:
        """POST a verb's body (GET without one); the JSON of the reply. Raises what the server said, typed.

        DeadlineExceeded when it does not answer in time, Unreachable when nobody answers.
        """
        try:
            reply = await self.request("GET" if body is None else "POST", path, body, timeout_s, repeatable=repeatable)
        except TimeoutError as error:
            raise DeadlineExceeded(f"{self.url} did not answer {path} within {timeout_s:g} s") from error
        except OSError as error:
            raise Unreachable(f"{self.url} gave no answer to {path} ({error}); ask again") from error
        if 200 <= reply.status < 300:
            return reply.content
        try:
            failure = WireError.model_validate_json(reply.content).exception()
        except ValidationError:
            failure = EnvironmentFailure(f"{self.url} answered {path} with status {reply.status}")
        raise failure

    async def step(self, body: bytes, timeout_s: float, *, repeatable: bool) -> bytes:
        """Send a step, as `ask("/step", ...)` does.

        Steps that are asked for in one turn of the loop travel together.
        """
        channel = self._channel or await self._socket(timeout_s)
        if channel is None:
            return await self.ask("/step", body, timeout_s, repeatable=repeatable)
        return pydantic_core.to_json(await channel.step(body))

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
        await self._lean.close()
        if self._tls is not None:
            await self._tls.aclose()

    async def _socket(self, timeout_s: float) -> WebSocketTransport | None:
        """The server's socket, or None when it has none (or stands behind TLS, as seldom as that is)."""
        loop = asyncio.get_running_loop()
        async with self._opening:
            if self._channel is None and self._tls is None and loop.time() - self._refused_at > CONNECT_AGAIN_S:
                calls = HttpClient(self.url, transport=None, timeout_s=timeout_s, retries=0, capacity_wait_s=0.0)
                channel = WebSocketTransport(calls)
                try:
                    await channel.connect()
                    self._channel = channel
                except (Unreachable, ConfigError) as error:
                    self._refused_at = loop.time()
                    logging.getLogger(__name__).info("%s: going on with requests", error)
        return self._channel
