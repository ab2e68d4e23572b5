"""Requests to one server of an environment: over our socket where it has one, else lean ones over plain HTTP, or
httpx's."""

from __future__ import annotations

import asyncio
import functools
import logging

import httpx
import pydantic_core
from pydantic import ValidationError

from agentgym.clients.transports.http import HttpClient
from agentgym.clients.transports.http11 import HttpResponse, KeepAlive
from agentgym.clients.transports.websocket import WebSocketTransport
from agentgym.clients.transports.websocket_connection import WebSocket
from agentgym.errors import ConfigError, DeadlineExceeded, EnvironmentFailure, Unreachable
from agentgym.protocol import WireError
from agentgym_servers.gateway.destinations import Destinations

CONNECT_AGAIN_S = 30.0
"""Seconds for which requests are used after a server refused its socket."""
MAX_REPLY = 64 * 2**20
"""Bytes of a reply; a server that sends more is not read further."""


class ReplicaClient:
    """Client of the server at `url`. It never retries: that is the caller's decision.

    `destinations`: the addresses that it may have; None for a server that the gateway started.
    """

    def __init__(self, url: str, destinations: Destinations | None = None) -> None:
        parsed = httpx.URL(url)
        self.url = url.rstrip("/")
        self.prefix = parsed.raw_path.rstrip(b"/").decode()
        self.host, self.port = parsed.host, parsed.port or (443 if parsed.scheme == "https" else 80)
        self.destinations = destinations
        self._connect_to = None if destinations is None else destinations.socket
        self._lean = KeepAlive(self.host, self.port, parsed.netloc.decode(), connect=self._connect_to)
        self._tls = (
            httpx.AsyncClient(headers={"content-type": "application/json"}) if parsed.scheme == "https" else None
        )
        self._channel: WebSocketTransport | None = None
        self._opening = asyncio.Lock()
        self._refused_at = -CONNECT_AGAIN_S

    async def request(
        self,
        verb: str,
        path: str,
        body: bytes | None,
        timeout_s: float,
        *,
        repeatable: bool = True,
        max_content: int = MAX_REPLY,
    ) -> HttpResponse:
        """Raises OSError: TimeoutError after `timeout_s`, ConnectionError when there is no whole reply, or one of more
        than `max_content` bytes.
        """
        if self._tls is None:
            target = (self.prefix + path).encode()
            return await self._lean.request(
                verb, target, body, timeout_s, repeatable=repeatable, max_content=max_content
            )
        await self.check_destination()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._over_tls(self._tls, verb, path, body, max_content)
        except httpx.TimeoutException as error:
            raise TimeoutError(str(error)) from error
        except httpx.HTTPError as error:
            raise ConnectionError(str(error)) from error

    async def check_destination(self) -> None:
        """Raises OSError where the server's name leads to an address that may not be asked."""
        if self.destinations is not None:
            await self.destinations.resolve(self.host, self.port)

    async def _over_tls(
        self, client: httpx.AsyncClient, verb: str, path: str, body: bytes | None, max_content: int
    ) -> HttpResponse:
        content = bytearray()
        async with client.stream(verb, self.url + path, content=body, timeout=None) as reply:
            async for part in reply.aiter_bytes():
                content += part
                if len(content) > max_content:
                    raise ConnectionError(f"the reply has more than {max_content} bytes")
        return HttpResponse(reply.status_code, dict(reply.headers), bytes(content))

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
                dial = functools.partial(WebSocket.open, connect=self._connect_to, max_message=MAX_REPLY)
                channel = WebSocketTransport(calls, dial)
                try:
                    await channel.connect()
                    self._channel = channel
                except (Unreachable, ConfigError, OSError) as error:
                    self._refused_at = loop.time()
                    logging.getLogger(__name__).info("%s: going on with requests", error)
        return self._channel
