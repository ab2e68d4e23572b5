"""HTTP calls of an environment server: retried until answered or given up, and coalesced into batches.

Every call of the protocol may be repeated (steps carry an index, resets an id), so a lost reply is asked for again
and acts once.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from agentgym.errors import AtCapacity, EnvironmentCrashed, EnvironmentFailure, SessionBusy, Unreachable, UsageError
from agentgym.http1 import KeepAlive, Reply
from agentgym.wire import WireError

FIRST_BACKOFF_S = 0.05
"""Waited before the first retry; doubled for each further one."""
BUSY_BACKOFF_S = 0.05

Parsed = TypeVar("Parsed", bound=BaseModel)


class Calls:
    """POST and GET below one URL. Raises EnvironmentFailure: what the server said, or Unreachable.

    A connection that fails is tried again `retries` times. A server without room is asked again, as often as its
    Retry-After says, for `capacity_wait_s` seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        transport: httpx.AsyncBaseTransport | None,
        timeout_s: float,
        retries: int,
        capacity_wait_s: float,
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
        self._lean: KeepAlive | None = None
        self._httpx: httpx.AsyncClient | None = None
        self._prefix = parsed.raw_path.rstrip(b"/")
        if transport is None and parsed.scheme == "http" and not parsed.userinfo and _direct(parsed.host):
            self._lean = KeepAlive(parsed.host, parsed.port or 80, parsed.netloc.decode())
        else:
            self._httpx = httpx.AsyncClient(
                transport=transport,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=30),
                verify=transport is None and parsed.scheme == "https",  # reading certificates takes 20 ms
                headers={"content-type": "application/json"},
            )

    async def get(self, path: str, model: type[Parsed], **call: Any) -> Parsed:
        return self._parse(path, model, await self._call("GET", path, None, **call))

    async def post(self, path: str, body: bytes, model: type[Parsed], **call: Any) -> Parsed:
        """`model` read from the reply. `timeout_s` and `retries` of this one call may be given."""
        return self._parse(path, model, await self._call("POST", path, body, **call))

    async def close(self) -> None:
        if self._lean is not None:
            await self._lean.close()
        if self._httpx is not None:
            await self._httpx.aclose()

    async def _call(
        self, verb: str, path: str, body: bytes | None, *, timeout_s: float | None = None, retries: int | None = None
    ) -> bytes:
        retries = self.retries if retries is None else retries
        give_up = time.monotonic() + self.capacity_wait_s
        failed = 0
        while True:
            try:
                reply = await self._exchange(verb, path, body, self.timeout_s if timeout_s is None else timeout_s)
                if 200 <= reply.status < 300:
                    return reply.content
                wait_s = self._refused(path, reply, give_up)
            except (httpx.RequestError, OSError, _Hiccup) as error:
                if failed >= retries:
                    raise Unreachable(
                        f"{self.url}{path} gave no answer after {failed + 1} attempts ({type(error).__name__}: "
                        f"{error}); check that the server runs and the URL is right"
                    ) from error
                wait_s = FIRST_BACKOFF_S * 2**failed
                failed += 1
            await asyncio.sleep(wait_s)

    async def _exchange(self, verb: str, path: str, body: bytes | None, timeout_s: float) -> Reply:
        if self._lean is not None:
            return await self._lean.request(verb, self._prefix + path.encode(), body, timeout_s)
        assert self._httpx is not None
        reply = await self._httpx.request(verb, self.url + path, content=body, timeout=timeout_s)
        return Reply(reply.status_code, dict(reply.headers), reply.content)

    def _refused(self, path: str, reply: Reply, give_up: float) -> float:
        """Seconds until it is worth asking again; raises when it is not."""
        try:
            error = WireError.model_validate_json(reply.content).exception()
        except ValidationError:  # not one of our servers' answers
            what = f"{self.url}{path} answered {reply.status}: {excerpt(reply.content)}"
            if reply.status in (429, 502, 503, 504):  # a proxy's
                raise _Hiccup(what) from None
            raise Unreachable(f"{what}; is there an AgentGym environment server at this URL?") from None
        if isinstance(error, AtCapacity | SessionBusy):
            try:
                wait_s = float(reply.headers.get("retry-after", BUSY_BACKOFF_S))
            except ValueError:  # a date
                wait_s = 1.0
            if time.monotonic() + wait_s <= give_up:
                return wait_s
        raise error

    def _parse(self, path: str, model: type[Parsed], content: bytes) -> Parsed:
        try:
            return model.model_validate_json(content)
        except ValidationError as error:
            raise EnvironmentCrashed(
                f"{self.url}{path} answered what the protocol forbids ({error.errors()[0]['msg']}): {excerpt(content)}"
            ) from error


def _direct(host: str) -> bool:
    """Whether no proxy of the environment stands before this host."""
    if host in ("localhost", "127.0.0.1", "::1"):
        return True
    return not {"http", "all"} & set(urllib.request.getproxies()) or bool(urllib.request.proxy_bypass(host))


class _Hiccup(Exception):
    """A proxy's refusal, worth another attempt."""


def excerpt(content: bytes) -> str:
    """The beginning of a reply, for an error message."""
    text = " ".join(content[:400].decode(errors="replace").split())
    return json.dumps(text if len(text) <= 200 else f"{text[:197]}...", ensure_ascii=False)


@dataclass(eq=False)
class Ask:
    """A step that somebody waits for."""

    body: bytes
    """A StepRequest."""
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def settle(self, answer: Any) -> None:
        """Answer with a reply, or fail with an EnvironmentFailure."""
        if self.answer.done():  # cancelled: nobody waits any more
            return
        if isinstance(answer, EnvironmentFailure):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


class Lane:
    """Collects what is asked in one tick of the event loop, or while a batch is under way, and sends it as one batch.

    A batch holds the next one back until it is answered, but for `patience_s` at most, so that a slow world does not
    hold up the others.
    """

    def __init__(self, send: Callable[[list[Ask]], Awaitable[None]], *, patience_s: float, largest: int) -> None:
        self._send, self._patience_s, self._largest = send, patience_s, largest
        self._waiting: list[Ask] = []
        self._scheduled = False
        self._ahead: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, ask: Ask) -> None:
        self._waiting.append(ask)
        self._schedule()

    async def close(self) -> None:
        """Cancel the batches under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for ask in self._waiting:
            ask.answer.cancel()
        self._waiting.clear()

    def _schedule(self) -> None:
        if self._waiting and self._ahead is None and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        batch, self._waiting = self._waiting[: self._largest], self._waiting[self._largest :]
        if not batch:
            return
        loop = asyncio.get_running_loop()
        task = self._ahead = loop.create_task(self._deliver(batch))
        self._tasks.add(task)
        timer = loop.call_later(self._patience_s, self._pass, task)
        task.add_done_callback(lambda done: (timer.cancel(), self._tasks.discard(done), self._pass(done)))

    def _pass(self, task: asyncio.Task[None]) -> None:
        if self._ahead is task:
            self._ahead = None
            self._schedule()

    async def _deliver(self, batch: list[Ask]) -> None:
        try:
            await self._send(batch)
        except EnvironmentFailure as error:
            for ask in batch:  # each its own exception: they are raised in different tasks
                ask.settle(type(error)(str(error)))
        except asyncio.CancelledError:
            for ask in batch:
                ask.answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001  (a bug of ours, handed to whoever awaits the step)
            for ask in batch:
                if not ask.answer.done():
                    ask.answer.set_exception(error)
