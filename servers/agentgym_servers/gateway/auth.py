"""API keys: 256 random bits, shown once, kept as their SHA-256; and `Guard`, which lets requests in or not."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from functools import partial

from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agentgym.errors import ConfigError, EnvironmentFailure, MissingScope, RateLimited, WrongKey
from agentgym.protocol import WireError
from agentgym_servers.gateway.database import ApiKey, RegistrationStore
from agentgym_servers.gateway.errors import DatabaseUnavailable
from agentgym_servers.web.caller import CALLER, RequestCaller
from agentgym_servers.web.cross_origin import ServerNames, client_address, reject_cross_origin
from agentgym_servers.web.responses import send_error
from agentgym_servers.web.websocket_handler import METER, close_socket

SCOPES = ("register", "run", "read")
"""The rights of a key: add and remove environments; play in them; see what there is."""
REFRESH_S = 1.0
"""A key that was revoked elsewhere stops working within twice so long, and its sockets are closed."""
WRONG_KEYS = "100/minute"
"""Wrong keys that one address may send."""
KEY_ENDED = "the API key of this socket was revoked or has expired"

CloseSocket = Callable[[], None]
OPEN_PATHS = ("/", "/health")
"""The page without its data, and whether the gateway lives."""


def new_key(name: str, scopes: Iterable[str], lifetime_s: float | None = None) -> tuple[ApiKey, str]:
    """A key to be stored, and the secret, which nobody can read again. Raises ConfigError for an unknown scope."""
    chosen = frozenset(scopes)
    if not chosen or chosen - set(SCOPES):
        raise ConfigError(f"the scopes of a key are {', '.join(SCOPES)}, not {', '.join(sorted(chosen)) or 'none'}")
    now = time.time()
    key_id = secrets.token_hex(4)
    secret = f"agk_{key_id}_{secrets.token_urlsafe(32)}"
    expires = None if lifetime_s is None else now + lifetime_s
    return ApiKey(key_id, name, _digest(secret), chosen, now, expires, None), secret


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Keyring:
    """The keys of a registry, read again every REFRESH_S; while the database fails, those known before.

    Sockets are closed once the key that opened them is no longer valid.
    """

    def __init__(self, registry: RegistrationStore, rate: str) -> None:
        try:
            self._rate: RateLimitItem = parse(rate)
        except ValueError as error:
            raise ConfigError(f"{rate!r} is no rate; write it as 1000/second or 60000/minute") from error
        self._wrong = parse(WRONG_KEYS)
        self._registry = registry
        self._keys: dict[str, ApiKey] = {}
        self._sockets: dict[CloseSocket, str | None] = {}
        """The open sockets, each with the key that opened it; None while none was needed."""
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    @property
    def empty(self) -> bool:
        """No key was ever created."""
        return not self._keys

    def load(self) -> None:
        self._keys = {key.id: key for key in self._registry.all_keys()}

    async def keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await asyncio.to_thread(self.load)
            except DatabaseUnavailable as error:
                logging.getLogger(__name__).warning("the keys could not be read again: %s", error)
            self.close_sockets()

    def admit(self, secret: str | None, scope: str, address: str) -> ApiKey:
        """The key, if it may do this now. Raises WrongKey, MissingScope or RateLimited."""
        if not secret:
            raise WrongKey("this gateway wants an API key: send it as `Authorization: Bearer KEY`")
        parts = secret.split("_", 2)
        key = self._keys.get(parts[1]) if len(parts) == 3 else None
        known = hmac.compare_digest(_digest(secret), "0" * 64 if key is None else key.digest)
        if key is None or not known or not key.valid(time.time()):
            self._count(self._wrong, f"address {address}", "this address sent wrong API keys")
            raise WrongKey("this API key is unknown, revoked or expired; `agentgym gateway keys create` makes another")
        self.count(key)
        if scope not in key.scopes:
            raise MissingScope(
                f"the key {key.id} ({key.name}) lacks the scope {scope!r}; it has {', '.join(sorted(key.scopes))}"
            )
        return key

    def count(self, key: ApiKey) -> None:
        """Count a request or frame. Raises RateLimited for one too many."""
        self._count(self._rate, key.id, f"the key {key.id} ({key.name}) asked")

    def watch(self, close: CloseSocket, key: ApiKey | None) -> None:
        """A socket was opened; `close` is called when its key is no longer valid."""
        self._sockets[close] = None if key is None else key.id

    def unwatch(self, close: CloseSocket) -> None:
        """The socket is closed."""
        self._sockets.pop(close, None)

    def close_sockets(self) -> None:
        """Close the sockets whose keys are no longer valid, and those without one as soon as there is a key."""
        now = time.time()
        for close, key_id in list(self._sockets.items()):
            key = None if key_id is None else self._keys.get(key_id)
            if (key_id is None and not self.empty) or (key_id is not None and (key is None or not key.valid(now))):
                self.unwatch(close)
                close()

    def _count(self, rate: RateLimitItem, who: str, what: str) -> None:
        if not self._limiter.hit(rate, who):
            window, _ = self._limiter.get_window_stats(rate, who)
            wait_s = max(1, round(window - time.time()))
            raise RateLimited(f"{what} more often than {rate}; wait {wait_s} s", wait_s)


class Guard:
    """ASGI middleware: no page of another origin drives the gateway, and with keys nobody without one.

    While no key exists everything is open, to loopback alone: `Host` must then name it, so that no foreign name that
    was made to point here passes for ours.
    """

    def __init__(self, app: ASGIApp, keyring: Keyring, hosts: Iterable[str] = ()) -> None:
        self.app, self.keyring, self._names = app, keyring, ServerNames(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        if await reject_cross_origin(scope, receive, send):
            return None
        headers, address, key = Headers(scope=scope), client_address(scope), None
        if self.keyring.empty:
            problem = self._names.refusal(scope)
            if problem is not None:
                return await send_error(scope, receive, send, 421, "WRONG_HOST", problem)
        elif scope["path"] not in OPEN_PATHS:
            try:
                needed = _scope_of(scope.get("method", "GET"), scope["path"])
                key = self.keyring.admit(_secret(headers), needed, address)
            except EnvironmentFailure as error:
                more = []
                if isinstance(error, RateLimited):
                    more = [(b"retry-after", b"%d" % error.retry_after_s)]
                elif isinstance(error, WrongKey):
                    more = [(b"www-authenticate", b"Bearer")]
                return await _refuse(scope, send, error, more)
        CALLER.set(RequestCaller(address, None if key is None else key.id))
        if scope["type"] == "websocket":
            return await self._socket(key, scope, receive, send)
        await self.app(scope, receive, send)

    async def _socket(self, key: ApiKey | None, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a socket as long as its key is valid, and count its frames."""
        if key is not None:
            scope = {**scope, METER: partial(self.keyring.count, key)}
        close = partial(close_socket, scope, send, 1008, KEY_ENDED)
        self.keyring.watch(close, key)
        try:
            await self.app(scope, receive, send)
        finally:
            self.keyring.unwatch(close)


def _secret(headers: Headers) -> str | None:
    kind, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else headers.get("x-api-key")


def _scope_of(method: str, path: str) -> str:
    if path == "/envs" or path.startswith("/envs/"):
        return "run"
    return "read" if method in ("GET", "HEAD") else "register"


async def _refuse(scope: Scope, send: Send, error: EnvironmentFailure, more: list[tuple[bytes, bytes]]) -> None:
    """Answer with a WireError; a socket is refused before its handshake."""
    body = json.dumps(WireError.of(error).model_dump()).encode()
    kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": f"{kind}.start", "status": error.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})
