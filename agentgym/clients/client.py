"""Environments behind a URL, and `connect`: one way to sessions of an environment however it is named.

async with connect("http://127.0.0.1:8000") as env:   # or "sokoban", or "my_package.env:MyEnvironment"
    session = env.session()
    step = await session.reset(options={"split": "train", "task": 0})
    while not (step.terminated or step.truncated):
        step = await session.step(await session.solver())
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from typing import Any, Literal, Protocol

import httpx
from pydantic import ValidationError

from agentgym.clients.agentenv import AgentEnvClient, is_dialect, split_url
from agentgym.clients.local import LocalClient
from agentgym.clients.openenv import OpenEnvClient
from agentgym.clients.server_process import server_process
from agentgym.clients.sessions import NativeClient, Transport
from agentgym.clients.transports.http import HttpClient, direct
from agentgym.clients.transports.http11 import Connect
from agentgym.clients.transports.http_batching import HttpTransport
from agentgym.clients.transports.websocket import WebSocketTransport
from agentgym.clients.transports.websocket_connection import WebSocket
from agentgym.errors import ConfigError, Unreachable, UsageError
from agentgym.protocol import ReplyModel
from agentgym.registry import is_url
from agentgym.session import Session
from agentgym.spec import EnvSpec

__all__ = ["Connection", "EnvClient", "LocalClient", "connect", "key_in_use", "server_process", "use_key"]

TIMEOUT_MARGIN_S = 10.0
"""A request may take this much longer than the environment's own deadline."""


_key: ContextVar[str | None] = ContextVar("key", default=None)


def use_key(key: str | None) -> None:
    """The API key of every client that is made in this context from now on and is given none."""
    _key.set(key)


def key_in_use() -> str | None:
    """`use_key`'s, to be told to another process."""
    return _key.get()


class Connection(Protocol):
    """A way to sessions of one environment."""

    @property
    def spec(self) -> EnvSpec: ...

    def session(self) -> Session:
        """A new session: its environment is opened by its first `reset` or `restore`. Close it when done."""
        ...


class _Closing(Connection, Protocol):
    async def close(self) -> None: ...


class _Extra(ReplyModel):
    protocol: str
    spec: dict[str, Any]
    extensions: list[str] = []


class _Metadata(ReplyModel):
    name: str
    description: str | None = None
    version: str | None = None
    readme_content: str | None = None
    agentgym: _Extra | None = None


class EnvClient:
    """Sessions of the environment at `url`. Use it with `async with`.

    `url` is a server's root (its first environment) or `.../envs/NAME`; the root of an OpenEnv server; or, for the
    servers of AgentGym (agentenv), `agentenv+http://host:port?env=textcraft` (`agentgym.clients.agentenv_table` lists
    them).

    wire: "socket" carries every session over one WebSocket, "http" uses requests alone, "auto" the socket where the
    server has one and nothing on the way refuses it. `timeout_s` is for one request; by default the environment's own
    deadline and ten seconds. A failed connection is tried again `retries` times, a server without room is waited for
    `capacity_wait_s`. `transport` replaces the network of the requests: `httpx.ASGITransport(app)`. spec: fields of
    the EnvSpec that a foreign server cannot tell, such as {"max_turns": 30, "instructions": "..."}. key: an API key,
    for a gateway that wants one; by default `use_key`'s. The AGENTGYM_KEY variable is read by the command line only.
    connect: who connects to an AgentGym server over plain HTTP, in place of the name's look-up; others are refused.
    """

    def __init__(
        self,
        url: str,
        *,
        wire: Literal["auto", "http", "socket"] = "auto",
        transport: httpx.AsyncBaseTransport | None = None,
        timeout_s: float | None = None,
        retries: int = 5,
        capacity_wait_s: float = 60.0,
        spec: Mapping[str, Any] | None = None,
        key: str | None = None,
        connect: Connect | None = None,
    ) -> None:
        self._dialect: Mapping[str, str] | None = None
        if is_dialect(url):
            url, self._dialect = split_url(url)
        self.url = url.rstrip("/")
        self._wire, self._own_transport, self._timeout_s = wire, transport is not None, timeout_s
        self._known_spec = dict(spec or {})
        self.calls = HttpClient(
            self.url,
            transport=transport,
            timeout_s=TIMEOUT_MARGIN_S if timeout_s is None else timeout_s,
            retries=retries,
            capacity_wait_s=capacity_wait_s,
            key=_key.get() if key is None else key,
            connect=connect,
        )
        self._env: _Closing | None = None

    async def __aenter__(self) -> EnvClient:
        try:
            await self.fetch_spec()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def spec(self) -> EnvSpec:
        """The environment's EnvSpec, once `async with` or `fetch_spec` has read it."""
        return self._connected().spec

    async def fetch_spec(self) -> EnvSpec:
        """Connect. Raises Unreachable, or ConfigError for an environment we cannot drive."""
        if self._env is None:
            self._env = await self._connect()
        return self._env.spec

    def session(self) -> Session:
        """A new session: the server opens it at its first `reset` or `restore`."""
        return self._connected().session()

    async def close(self) -> None:
        """Close the sessions that are still open, as far as the server answers, and the connections."""
        if self._env is not None:
            await self._env.close()
        await self.calls.close()

    def _connected(self) -> _Closing:
        if self._env is None:
            raise UsageError("the client is not connected yet: use `async with EnvClient(url) as client`")
        return self._env

    async def _connect(self) -> _Closing:
        if self._dialect is not None:
            return await AgentEnvClient.open(self.calls, self._dialect, self._known_spec, self._timeout_s)
        metadata = await self.calls.get("/metadata", _Metadata)
        if metadata.agentgym is None and self.calls.connect is not None:
            raise ConfigError(f"{self.url} is no AgentGym server")
        if metadata.agentgym is None:
            return await OpenEnvClient.open(self.calls, metadata.model_dump(), self._known_spec, self._timeout_s)
        if metadata.agentgym.protocol != "1":
            raise ConfigError(f"{self.url} speaks protocol {metadata.agentgym.protocol}, this client 1; update it")
        spec = self._read_spec(metadata.agentgym.spec)
        if self._timeout_s is None:
            self.calls.timeout_s = spec.step_deadline_s + TIMEOUT_MARGIN_S
        extensions = metadata.agentgym.extensions
        wire = await self._socket(extensions) or HttpTransport(self.calls, many="step_many" in extensions)
        queue_s = self.calls.capacity_wait_s if "queue" in extensions else None
        return NativeClient(spec, wire, timeout_s=self.calls.timeout_s, queue_s=queue_s)

    def _read_spec(self, described: dict[str, Any]) -> EnvSpec:
        known = {key: value for key, value in described.items() if key in EnvSpec.model_fields}
        try:
            return EnvSpec.model_validate(known)
        except ValidationError as error:
            raise ConfigError(
                f"{self.url} describes its environment in a way this client cannot read: {error}"
            ) from error

    async def _socket(self, extensions: list[str]) -> Transport | None:
        """The server's socket, connected; None for requests."""
        url = httpx.URL(self.url)
        if self._wire == "http":
            return None
        reached = self.calls.connect is not None or direct(url.host, url.scheme)
        if self._wire == "auto" and ("socket" not in extensions or self._own_transport or url.userinfo or not reached):
            return None
        channel = WebSocketTransport(self.calls, functools.partial(WebSocket.open, connect=self.calls.connect))
        try:
            await channel.connect()
        except Unreachable as error:
            if self._wire == "socket":
                raise
            logging.getLogger(__name__).warning("%s: going on with requests", error)
            return None
        return channel


@contextlib.asynccontextmanager
async def connect(name_or_url: str, **kwargs: Any) -> AsyncIterator[Connection]:
    """Sessions of an environment named in any of the three ways: an id, "package.module:Class", or a server's URL.

    `kwargs` are the environment's constructor's, or for a URL `EnvClient`'s. Sessions still open at the end are closed.
    Raises UnknownEnvironment, MissingDependency or Unreachable.
    """
    if is_url(name_or_url):
        async with EnvClient(name_or_url, **kwargs) as client:
            yield client
        return
    local = LocalClient(name_or_url, **kwargs)
    try:
        yield local
    finally:
        await local.close()
