"""Our protocol over one WebSocket that carries every session: requests have ids, replies come in any order.

Sessions belong to their leases, not to the socket. When it drops, whatever is unanswered is sent again over another
one: steps carry an index and resets an id, so that each acts once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import pydantic_core
from pydantic import ValidationError

from agentgym.clients.transports.http import (
    BUSY_BACKOFF_S,
    FIRST_BACKOFF_S,
    HttpClient,
    ReplyT,
    Unanswered,
    excerpt,
    malformed_reply,
)
from agentgym.clients.transports.http_batching import BATCH, failure_of
from agentgym.clients.transports.websocket_connection import HandshakeRejected, WebSocket
from agentgym.errors import (
    AtCapacity,
    BadRequest,
    ConfigError,
    EnvironmentCrashed,
    EnvironmentFailure,
    SessionBusy,
    Unreachable,
    copy_of,
)

CONNECT_S = 10.0
ROOM_S = 1.0
"""A server without room, that keeps no queue, is asked again after so long."""
PING_S = 20.0
"""A socket that is silent for so long while something is asked is pinged, and dropped after as long again."""
MAX_BACKOFF_S = 2.0


class _PendingRequest:
    """A request that somebody waits for."""

    __slots__ = ("answer", "attempts", "body", "queued", "retries", "sent", "timeout_s", "verb")

    def __init__(
        self, verb: str, body: bytes, answer: asyncio.Future[Any], timeout_s: float, retries: int, queued: bool
    ) -> None:
        self.verb, self.body, self.answer, self.timeout_s, self.retries = verb, body, answer, timeout_s, retries
        self.attempts, self.sent = 0, 0.0
        self.queued = queued
        """It may wait at the server: no answer in time does not mean that the socket is dead."""


class WebSocketTransport:
    """`agentgym.clients.sessions.Transport` over the socket below `calls.url`; `calls` has timeouts and retries.

    Steps that are asked for in one turn of the event loop travel in one frame. `open_socket` is called as
    `WebSocket.open`.
    """

    def __init__(self, calls: HttpClient, open_socket: Callable[..., Awaitable[WebSocket]] = WebSocket.open) -> None:
        self.url, self._calls = calls.url, calls
        self._open_socket = open_socket
        self._address = f"ws{calls.url.removeprefix('http')}/ws?ext=1"
        self._loop = asyncio.get_running_loop()
        self._socket: WebSocket | None = None
        self._hello: asyncio.Future[None] | None = None
        self._largest = 2**20
        self._outbox: list[_PendingRequest] = []
        self._sent: dict[int, _PendingRequest | list[_PendingRequest]] = {}
        """Requests by id; a list is a step_many."""
        self._last_id = 0
        self._flushing = False
        self._fruitless = 0
        """Connections that ended, or were not made, since the last reply."""
        self._reconnecting: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._watch_s = max(0.02, min(5.0, calls.timeout_s / 4))
        self._closed = False

    async def connect(self) -> None:
        """The first connection. Raises Unreachable when there is none, ConfigError for another protocol's socket."""
        for attempt in range(self._calls.retries + 1):
            try:
                await self._open()
                return
            except OSError as error:
                if attempt == self._calls.retries or isinstance(error, HandshakeRejected):
                    raise Unreachable(f"{self._address} opens no socket ({_say(error)})") from error
            await asyncio.sleep(FIRST_BACKOFF_S * 2**attempt)

    def step(self, body: bytes) -> asyncio.Future[Any]:
        return self._put("step", body, self._calls.timeout_s, self._calls.retries)

    async def ask(
        self,
        verb: str,
        body: bytes,
        model: type[ReplyT],
        *,
        timeout_s: float | None = None,
        retries: int | None = None,
        queue_until: float | None = None,
    ) -> ReplyT:
        timeout_s = self._calls.timeout_s if timeout_s is None else timeout_s
        retries = self._calls.retries if retries is None else retries
        give_up = time.monotonic() + self._calls.capacity_wait_s if queue_until is None else queue_until
        while True:
            try:
                content = await self._put(verb, body, timeout_s, retries, queued=queue_until is not None)
                break
            except (AtCapacity, SessionBusy) as error:
                wait_s = ROOM_S if isinstance(error, AtCapacity) else BUSY_BACKOFF_S
                if time.monotonic() + wait_s > give_up:
                    raise
            await asyncio.sleep(wait_s)
        try:
            return model.model_validate(content)
        except ValidationError as error:
            raise malformed_reply(f"{self.url}/{verb}", error, pydantic_core.to_json(content)) from error

    async def stop(self) -> None:
        for ask in [*self._outbox, *self._waiting()]:
            if ask.verb == "step":
                ask.answer.cancel()

    async def close(self) -> None:
        self._closed = True
        for ask in [*self._outbox, *self._waiting()]:
            ask.answer.cancel()
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
        if self._watch is not None:
            self._watch.cancel()
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    def _put(
        self, verb: str, body: bytes, timeout_s: float, retries: int, *, queued: bool = False
    ) -> asyncio.Future[Any]:
        answer = self._loop.create_future()
        self._outbox.append(_PendingRequest(verb, body, answer, timeout_s, retries, queued))
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        return answer

    def _flush(self) -> None:
        """Send what is asked: the steps together, every other request in a frame of its own."""
        self._flushing = False
        if self._closed:
            self._fail(Unreachable(f"the client of {self.url} is closed; make a new one"))
        if self._socket is None:
            self._reconnect()
            return
        outbox, self._outbox = self._outbox, []
        now, steps, frames = time.monotonic(), [], []
        for ask in outbox:
            if len(ask.body) + 100 > self._largest:  # with what the frame adds
                _settle(ask, BadRequest(f"a request may have {self._largest} bytes, this one has more"))
            elif not ask.answer.done():  # else cancelled: nobody waits any more
                ask.sent = now
                if ask.verb == "step":
                    steps.append(ask)
                else:
                    frames.append(self._frame(ask))
        for some in _batches(steps, self._largest - 200):
            frames.append(self._frame(some[0]) if len(some) == 1 else self._batch(some))
        if frames:
            self._socket.send(frames)
        if self._sent and self._watch is None:
            self._watch = self._loop.call_later(self._watch_s, self._look)

    def _frame(self, ask: _PendingRequest) -> bytes:
        self._last_id += 1
        self._sent[self._last_id] = ask
        return b'{"id":%d,"type":"%s","data":%s}' % (self._last_id, ask.verb.encode(), ask.body)

    def _batch(self, asks: list[_PendingRequest]) -> bytes:
        self._last_id += 1
        self._sent[self._last_id] = asks
        steps = b",".join([ask.body for ask in asks])
        return b'{"id":%d,"type":"step_many","data":{"steps":[%s]}}' % (self._last_id, steps)

    def _receive(self, message: bytes) -> None:
        try:
            frame = pydantic_core.from_json(message)
            kind, content = frame["type"], frame["data"]
            number = frame["id"] if self._hello is None else 0
        except (ValueError, KeyError, TypeError):
            self._lose(f"the server sent what the protocol forbids: {excerpt(message)}")
            return
        if self._hello is not None:
            self._greeted(kind, content, self._hello)
        elif type(number) is not int or not 0 < number <= self._last_id:  # of a request that it could not read, perhaps
            self._lose(f"the server sent what nobody asked for: {excerpt(message)}")
        elif number in self._sent:  # else it was answered before
            self._fruitless = 0
            if kind == "results":
                self._results(number, content, message)
            else:
                self._reply(number, kind, content, message)

    def _reply(self, number: int, kind: Any, content: Any, message: bytes) -> None:
        request = self._sent.pop(number)
        asks = request if isinstance(request, list) else [request]
        for ask in asks:  # each its own exception: they are raised in different tasks
            if kind == "reply" and ask is request:
                _settle(ask, content)
            elif kind == "error":
                _settle(ask, failure_of(content) or self._forbidden(ask, message))
            else:
                _settle(ask, self._forbidden(ask, message))

    def _results(self, number: int, content: Any, message: bytes) -> None:
        """Some of a batch. One that is answered twice keeps its first answer: the second is the same."""
        asks = self._sent[number]
        try:
            if not isinstance(asks, list):
                raise ValueError("results of a single request")
            for index, entry in content["results"]:
                if type(index) is not int or not 0 <= index < len(asks):
                    raise ValueError(f"a result {index!r} of {len(asks)} steps")
                ask = asks[index]
                if not ask.answer.done():
                    failed = failure_of(entry)
                    if failed is None:
                        ask.answer.set_result(entry)
                    else:
                        ask.answer.set_exception(failed)
            complete = content["pending"] == 0
        except (ValueError, KeyError, TypeError):
            self._reply(number, "garbage", None, message)
            return
        if complete:
            del self._sent[number]
            for ask in asks:
                _settle(ask, EnvironmentCrashed(f"{self.url} answered fewer than the {len(asks)} steps it was asked"))

    def _forbidden(self, ask: _PendingRequest, message: bytes) -> EnvironmentCrashed:
        return EnvironmentCrashed(f"{self.url}/{ask.verb} answered what the protocol forbids: {excerpt(message)}")

    def _greeted(self, kind: Any, content: Any, hello: asyncio.Future[None]) -> None:
        if hello.done():
            return
        if kind != "hello" or not isinstance(content, dict) or not isinstance(content.get("max_frame_bytes"), int):
            hello.set_exception(ConnectionError(f"the server's first frame is no hello but {kind!r}"))
        elif content.get("protocol") != "1":
            protocol = content.get("protocol")
            hello.set_exception(ConfigError(f"{self.url} speaks protocol {protocol}, this client 1; update it"))
        else:
            self._largest = content["max_frame_bytes"]
            hello.set_result(None)

    async def _open(self) -> None:
        hello = self._hello = self._loop.create_future()
        socket: WebSocket | None = None
        ended: list[str] = []

        def lost(why: str) -> None:
            ended.append(why)
            if not hello.done():
                hello.set_exception(ConnectionResetError(why))
            elif socket is not None and self._socket is socket:
                self._lose(why)

        try:
            async with asyncio.timeout(CONNECT_S):
                socket = await self._open_socket(self._address, self._receive, lost, CONNECT_S, self._calls.headers)
                await hello
            if ended:
                raise ConnectionResetError(ended[0])
        except BaseException:
            if socket is not None:
                socket.drop()
            raise
        finally:
            self._hello = None
        self._socket = socket

    def _lose(self, why: str) -> None:
        """Drop the socket and ask again over another for what is unanswered."""
        socket, self._socket = self._socket, None
        if self._hello is not None and not self._hello.done():
            self._hello.set_exception(ConnectionError(why))
        if socket is not None:
            socket.drop()
        unanswered = self._waiting()
        self._sent.clear()
        if unanswered:
            self._fruitless += 1
            self._outbox = self._tried(unanswered, why) + self._outbox
        if self._outbox:
            self._reconnect()

    def _tried(self, asks: Iterable[_PendingRequest], why: str) -> list[_PendingRequest]:
        """Those that may be tried again; the others fail."""
        again = []
        for ask in asks:
            ask.attempts += 1
            if ask.attempts <= ask.retries:
                again.append(ask)
            else:
                message = f"{self.url}/{ask.verb} gave no answer after {ask.attempts} attempts ({why})"
                _settle(ask, Unreachable(f"{message}; check that the server runs and the URL is right"))
        return again

    def _fail(self, error: Exception) -> None:
        for ask in self._outbox:
            if not ask.answer.done():
                ask.answer.set_exception(copy_of(error))
        self._outbox.clear()

    def _reconnect(self) -> None:
        if self._reconnecting is None and self._outbox:
            self._reconnecting = self._loop.create_task(self._try_to_open())

    async def _try_to_open(self) -> None:
        try:
            while self._outbox:
                if self._fruitless:
                    await asyncio.sleep(min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (self._fruitless - 1)))
                try:
                    await self._open()
                    break
                except ConfigError as error:  # another server has taken its place
                    self._fail(Unreachable(str(error)))
                except OSError as error:
                    self._fruitless += 1
                    self._outbox = self._tried(self._outbox, _say(error))
                self._outbox = [ask for ask in self._outbox if not ask.answer.done()]
        except Exception as error:  # noqa: BLE001  (a bug of ours, handed to whoever awaits an answer)
            self._fail(error)
        finally:
            self._reconnecting = None
        if self._socket is not None:
            self._flush()

    def _look(self) -> None:
        """Now and then while something is asked: is a reply overdue, does the server still live?"""
        self._watch = None
        now, socket = time.monotonic(), self._socket
        if socket is None or not self._waiting():
            return
        overdue = [ask for ask in self._waiting() if now - ask.sent > ask.timeout_s]
        if dead := [ask for ask in overdue if not ask.queued or socket.heard <= ask.sent]:
            self._lose(f"TimeoutError: no reply in {dead[0].timeout_s:g} s")
        elif socket.pinged is not None and now - socket.pinged > PING_S:
            self._lose(f"the server did not answer a ping in {PING_S:g} s")
        elif socket.pinged is None and now - socket.heard > min(PING_S, self._calls.timeout_s / 2):
            socket.ping()
        else:
            for ask in overdue:
                ask.answer.set_exception(Unanswered())
            self._sent = {number: one for number, one in self._sent.items() if one not in overdue}
        self._watch = self._loop.call_later(self._watch_s, self._look)

    def _waiting(self) -> list[_PendingRequest]:
        """Return the requests that are sent and not answered."""
        asks: Iterator[_PendingRequest] = (
            ask for request in self._sent.values() for ask in (request if isinstance(request, list) else (request,))
        )
        return [ask for ask in asks if not ask.answer.done()]


def _settle(ask: _PendingRequest, answer: Any) -> None:
    if ask.answer.done():
        return
    if isinstance(answer, EnvironmentFailure):
        ask.answer.set_exception(answer)
    else:
        ask.answer.set_result(answer)


def _batches(asks: list[_PendingRequest], largest: int) -> Iterator[list[_PendingRequest]]:
    """Yield batches in order, at most BATCH and about `largest` bytes each."""
    batch: list[_PendingRequest] = []
    size = 0
    for ask in asks:
        if batch and (len(batch) == BATCH or size + len(ask.body) + 1 > largest):
            yield batch
            batch, size = [], 0
        batch.append(ask)
        size += len(ask.body) + 1
    if batch:
        yield batch


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
