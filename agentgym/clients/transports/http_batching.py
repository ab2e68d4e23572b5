"""Our protocol over HTTP: steps that are asked for at the same time travel in one request.

Every call may be repeated (steps carry an index, resets an id), so a lost reply is asked for again and acts once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pydantic_core
from pydantic import ValidationError

from agentgym.clients.transports.http import HttpClient, ReplyT, malformed_reply
from agentgym.errors import EnvironmentCrashed, EnvironmentFailure, copy_of
from agentgym.protocol import WireError

BATCH = 512
"""Most steps of one request."""
MAX_BATCH_DELAY_S = 0.005
WAIT_S = 0.02
"""Once one step of a batch is answered, the others get this long; later ones are asked for again."""


class HttpTransport:
    """`agentgym.clients.sessions.Transport` over requests. many: the server has /step_many."""

    def __init__(self, calls: HttpClient, *, many: bool) -> None:
        self.url, self._calls, self._many = calls.url, calls, many
        self._fast = StepBatcher(self._send, patience_s=MAX_BATCH_DELAY_S, largest=BATCH)
        self._slow = StepBatcher(self._send, patience_s=MAX_BATCH_DELAY_S, largest=BATCH)

    async def step(self, body: bytes) -> Any:
        ask = PendingRequest(body)
        self._fast.put(ask)
        return await ask.answer

    async def ask(self, verb: str, body: bytes, model: type[ReplyT], **call: Any) -> ReplyT:
        return await self._calls.post(f"/{verb}", body, model, **call)

    async def stop(self) -> None:
        await self._fast.close()
        await self._slow.close()

    async def close(self) -> None:
        """The connections are the caller's `calls`, who closes them."""

    async def _send(self, batch: list[PendingRequest]) -> None:
        if len(batch) == 1 or not self._many:
            await asyncio.gather(*(self._send_one(ask) for ask in batch))
            return
        body = b'{"steps":[%s],"wait_s":%g}' % (b",".join(ask.body for ask in batch), WAIT_S)
        results = (await self._post("/step_many", body)).get("results")
        if not isinstance(results, list) or len(results) != len(batch):
            count = len(results) if isinstance(results, list) else 0
            raise EnvironmentCrashed(f"{self.url} answered {count} of {len(batch)} steps")
        for ask, answer in zip(batch, results):
            if answer is None:  # still running: ask again, apart from the quick ones
                self._slow.put(ask)
            else:
                ask.settle(failure_of(answer) or answer)

    async def _send_one(self, ask: PendingRequest) -> None:
        try:
            ask.settle(await self._post("/step", ask.body))
        except EnvironmentFailure as error:
            ask.settle(error)

    async def _post(self, path: str, body: bytes) -> dict[str, Any]:
        content = await self._calls.call("POST", path, body)
        try:
            reply = pydantic_core.from_json(content)
            if not isinstance(reply, dict):
                raise ValueError("not an object")
        except ValueError as error:
            raise malformed_reply(self.url + path, error, content) from error
        return reply


def failure_of(entry: Any) -> EnvironmentFailure | None:
    """Return the error of a batch's entry, when it is a WireError."""
    if not isinstance(entry, dict) or "code" not in entry:
        return None
    try:
        return WireError.model_validate(entry).exception()
    except ValidationError as error:
        return EnvironmentCrashed(f"the server answered a step with an error that cannot be read: {error}")


@dataclass(eq=False)
class PendingRequest:
    """A step that somebody waits for."""

    body: bytes
    """A StepRequest."""
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def settle(self, answer: Any) -> None:
        """Answer with a StepReply's JSON object, or fail with an EnvironmentFailure."""
        if self.answer.done():  # cancelled: nobody waits any more
            return
        if isinstance(answer, EnvironmentFailure):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


class StepBatcher:
    """Collects what is asked in one tick of the event loop, or while a batch is under way, and sends it as one batch.

    A batch holds the next one back until it is answered, but for `patience_s` at most, so that a slow environment does
    not hold up the others.
    """

    def __init__(
        self, send: Callable[[list[PendingRequest]], Awaitable[None]], *, patience_s: float, largest: int
    ) -> None:
        self._send, self._patience_s, self._largest = send, patience_s, largest
        self._waiting: list[PendingRequest] = []
        self._scheduled = False
        self._ahead: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, ask: PendingRequest) -> None:
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

    async def _deliver(self, batch: list[PendingRequest]) -> None:
        try:
            await self._send(batch)
        except EnvironmentFailure as error:
            for ask in batch:  # each its own exception: they are raised in different tasks
                ask.settle(copy_of(error))
        except asyncio.CancelledError:
            for ask in batch:
                ask.answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001  (a bug of ours, handed to whoever awaits the step)
            for ask in batch:
                if not ask.answer.done():
                    ask.answer.set_exception(copy_of(error))
