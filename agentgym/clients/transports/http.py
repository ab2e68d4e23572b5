"""HTTP calls of an environment server, retried until answered or given up.

Every call of the protocol may be repeated (steps carry an index, resets an id), so a lost reply is asked for again
and acts once.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from agentgym.clients.transports.http11 import Connect, HttpResponse, KeepAlive, NotConnected
from agentgym.errors import AtCapacity, EnvironmentCrashed, SessionBusy, Unreachable, UsageError, WrongKey
from agentgym.protocol import WireError

FIRST_BACKOFF_S = 0.05
"""Waited before the first retry; doubled for each further one."""
BUSY_BACKOFF_S = 0.05

ReplyT = TypeVar("ReplyT", bound=BaseModel)


class HttpClient:
    """POST and GET below one URL. Raises EnvironmentFailure: what the server said, or Unreachable.

    A connection that fails is tried again `retries` times. A server without room is asked again, as often as its
    Retry-After says, for `capacity_wait_s` seconds. With `connect`, that is who connects, to plain HTTP.
    """

    def __init__(
        self,
        url: str,
        *,
        transport: httpx.AsyncBaseTransport | None,
        timeout_s: float,
        retries: int,
        capacity_wait_s: float,
        key: str | None = None,
        connect: Connect | None = None,
    ) -> None:
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise UsageError(f"{url!r} is not a URL: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise UsageError(f"{url!r} is not the URL of a server; write it as http://host:port or .../envs/NAME")
        self.url, self.timeout_s, self.retries, self.capacity_wait_s = (
            url.rstrip("/"),
            timeout_s,
            retries,
            capacity_wait_s,
        )
        if key is not None and not (key.isascii() and key.isprintable()):
            raise UsageError("an API key is printable ASCII; this one cannot be sent")
        self.headers = {} if key is None else {"authorization": f"Bearer {key}"}
        """Sent with every request, and when a socket is opened."""
        self._lean: KeepAlive | None = None
        self._httpx: httpx.AsyncClient | None = None
        self._prefix = parsed.raw_path.rstrip(b"/")
        plain = transport is None and parsed.scheme == "http" and not parsed.userinfo
        self.connect = connect if plain else None
        if plain and (connect is not None or direct(parsed.host)):
            self._lean = KeepAlive(parsed.host, parsed.port or 80, parsed.netloc.decode(), self.headers, connect)
        else:
            self._httpx = httpx.AsyncClient(
                transport=transport,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=30),
                verify=transport is None and parsed.scheme == "https",  # reading certificates takes 20 ms
                headers={"content-type": "application/json", **self.headers},
            )

    async def get(self, path: str, model: type[ReplyT], **call: Any) -> ReplyT:
        return self._parse(path, model, await self.call("GET", path, None, **call))

    async def post(self, path: str, body: bytes, model: type[ReplyT], **call: Any) -> ReplyT:
        """`model` read from the reply. `timeout_s` and `retries` of this one call may be given."""
        return self._parse(path, model, await self.call("POST", path, body, **call))

    async def close(self) -> None:
        if self._lean is not None:
            await self._lean.close()
        if self._httpx is not None:
            await self._httpx.aclose()

    async def call(
        self,
        verb: str,
        path: str,
        body: bytes | None,
        *,
        timeout_s: float | None = None,
        retries: int | None = None,
        queue_until: float | None = None,
    ) -> bytes:
        """The body of the reply. With `queue_until`, for a request that may wait at the server until then: an attempt
        that gets no answer raises Unanswered, and is the caller's to ask again."""
        retries = self.retries if retries is None else retries
        give_up = time.monotonic() + self.capacity_wait_s if queue_until is None else queue_until
        failed = 0
        while True:
            try:
                reply = await self.exchange(verb, path, body, self.timeout_s if timeout_s is None else timeout_s)
                if 200 <= reply.status < 300:
                    return reply.content
                wait_s = self._refused(path, reply, give_up)
            except (httpx.RequestError, OSError, _TransientError) as error:
                if queue_until is not None and isinstance(error, TimeoutError | httpx.ReadTimeout):
                    raise Unanswered from error
                if failed >= retries:
                    raise Unreachable(
                        f"{self.url}{path} gave no answer after {failed + 1} attempts ({type(error).__name__}: "
                        f"{error}); check that the server runs and the URL is right"
                    ) from error
                wait_s = FIRST_BACKOFF_S * 2**failed
                failed += 1
            await asyncio.sleep(wait_s)

    async def exchange(
        self, verb: str, path: str, body: bytes | None, timeout_s: float, *, repeatable: bool = True
    ) -> HttpResponse:
        """One attempt, whatever its status. Raises OSError or httpx.RequestError; `unsent` says which kind."""
        if self._lean is not None:
            return await self._lean.request(verb, self._prefix + path.encode(), body, timeout_s, repeatable=repeatable)
        assert self._httpx is not None
        reply = await self._httpx.request(verb, self.url + path, content=body, timeout=timeout_s)
        return HttpResponse(reply.status_code, dict(reply.headers), reply.content)

    def _refused(self, path: str, reply: HttpResponse, give_up: float) -> float:
        """Seconds until it is worth asking again; raises when it is not."""
        try:
            error = WireError.model_validate_json(reply.content).exception()
        except ValidationError:  # not one of our servers' answers
            what = f"{self.url}{path} answered {reply.status}: {excerpt(reply.content)}"
            if reply.status in (429, 502, 503, 504):  # a proxy's
                raise _TransientError(what) from None
            raise Unreachable(f"{what}; is there an AgentGym environment server at this URL?") from None
        if isinstance(error, AtCapacity | SessionBusy):
            try:
                wait_s = float(reply.headers.get("retry-after", BUSY_BACKOFF_S))
            except ValueError:  # a date
                wait_s = 1.0
            if time.monotonic() + wait_s <= give_up:
                return wait_s
        if isinstance(error, WrongKey) and "authorization" not in self.headers:
            raise WrongKey(
                f"{self.url} needs an API key: pass key=... in Python, or run `agentgym --key KEY ...`; "
                "the AGENTGYM_KEY variable is read by the command line only"
            )
        raise error

    def _parse(self, path: str, model: type[ReplyT], content: bytes) -> ReplyT:
        try:
            return model.model_validate_json(content)
        except ValidationError as error:
            raise malformed_reply(self.url + path, error, content) from error


def malformed_reply(where: str, error: ValueError, content: bytes) -> EnvironmentCrashed:
    """Return the error for a reply that violates the protocol."""
    why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
    return EnvironmentCrashed(f"{where} answered what the protocol forbids ({why}): {excerpt(content)}")


def unsent(error: Exception) -> bool:
    """Return whether the request that failed with this error never left, so that sending it again is its first time."""
    return isinstance(error, NotConnected | httpx.ConnectError | httpx.ConnectTimeout)


def direct(host: str, scheme: str = "http") -> bool:
    """Return whether no proxy of the environment stands before this host."""
    if host in ("localhost", "127.0.0.1", "::1"):
        return True
    return not {scheme, "all"} & set(urllib.request.getproxies()) or bool(urllib.request.proxy_bypass(host))


class Unanswered(Exception):
    """A request that may wait at the server got no answer in time: it waits, or its reply is lost."""


class _TransientError(Exception):
    """A proxy's refusal, worth another attempt."""


def excerpt(content: bytes) -> str:
    """The beginning of a reply, for an error message."""
    text = " ".join(content[:400].decode(errors="replace").split())
    return json.dumps(text if len(text) <= 200 else f"{text[:197]}...", ensure_ascii=False)
