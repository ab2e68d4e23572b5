"""Our socket, `/ws?ext=1`: the verbs of HTTP, many sessions on one socket, answers as they are ready.

A request is `{"id": int, "type": verb, "data": body}`, its answer `{"id", "type": "reply" | "error", "data"}`; that of
step_many comes as one or more `{"id", "type": "results", "data": {"results": [[i, reply], ...], "pending": n}}`.
Sessions belong to their lease, not to the socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic import ValidationError

from agentgym.errors import BadRequest, EnvironmentFailure
from agentgym.protocol import VERBS, StepManyRequest, StepRequest, WireError
from agentgym_servers.env_server.metadata import PROTOCOL
from agentgym_servers.web.backend import CANCELLED, BackendReply, EnvBackend, entry_bytes, entry_of, method_of
from agentgym_servers.web.caller import CALLER, RequestCaller
from agentgym_servers.web.encoding import array, encode, numbered, wrapped
from agentgym_servers.web.parsing import NotJson, failure, read, validation_error
from agentgym_servers.web.turns import turns
from agentgym_servers.web.websocket_handler import Meter, WebSocketSender

MAX_ID = 2**63
MAX_CALLS = 8192
"""Steps and other calls of one socket under way; while there are more, its further frames wait."""
TURN = 64
"""Steps of one request that are taken before the first answers are sent."""


class Multiplex:
    """The conversation of one socket with one environment."""

    def __init__(
        self, verbs: EnvBackend, env: str, *, lease_s: float, max_frame_bytes: int, meter: Meter | None = None
    ) -> None:
        self._verbs, self._env, self._meter = verbs, env, meter
        self._running = 0
        """Calls under way."""
        self._taking = 0
        """Requests of many steps of which some are not taken yet: frames that come after them wait for their turn."""
        caller = CALLER.get()
        hello = {"protocol": PROTOCOL, "env": env, "lease_s": lease_s, "max_frame_bytes": max_frame_bytes}
        self._hello = encode({"type": "hello", "data": hello})
        self._calls: dict[str, tuple[Callable[[Any], Any], Callable[..., Any]]] = {
            name: (
                verb.request.__pydantic_validator__.validate_python,
                self._step_many if name == "step_many" else _on_behalf_of(caller, name, method_of(verbs, verb)),
            )
            for name, verb in VERBS.items()
        }

    def begin(self, link: WebSocketSender) -> None:
        self._link = link
        link.send(self._hello)

    def text(self, frame: bytes) -> None:
        identity = None
        try:
            message = read(frame)
            identity, kind, data = _parts(message)
            if self._meter is not None:
                self._meter()
            if kind not in self._calls:
                raise BadRequest(f"there is no {kind[:40]!r}; a frame's type is one of {', '.join(self._calls)}")
            validate, call = self._calls[kind]
            body = validate(data)
            if kind == "step_many":
                self._step_many(identity, body)
                return
            answer: BackendReply = call(self._env, body)
        except EnvironmentFailure as error:
            self._error(identity, failure(error))
        except (ValidationError, NotJson) as error:
            self._error(identity, validation_error(error))
        except Exception as error:  # noqa: BLE001  (a bug of ours must not take the other sessions' socket)
            self._error(identity, _bug(error))
        else:
            if type(answer) is bytes:
                self._link.send(wrapped({"id": identity, "type": "reply"}, "data", answer))
            else:
                self.count(1)
                answer.add_done_callback(partial(self._settled, identity))  # type: ignore[union-attr]

    def unreadable(self, why: str) -> None:
        self._error(None, failure(BadRequest(why)))

    def end(self) -> None:
        """Nothing: what is running goes on, and is asked for again on another socket."""

    def count(self, change: int) -> None:
        """Note calls that began or ended: a client that asks faster than it is answered is not read meanwhile."""
        before, self._running = self._running, self._running + change
        if (before > MAX_CALLS) != (self._running > MAX_CALLS) and not self._taking:
            self._link.hold(self._running > MAX_CALLS)

    def take(self, change: int) -> None:
        """Note that a request's steps are not all taken, or that they are: what is asked in order is taken in order."""
        before, self._taking = self._taking, self._taking + change
        if bool(before) != bool(self._taking) and self._running <= MAX_CALLS:
            self._link.hold(self._taking > 0)

    def _settled(self, identity: int, answer: asyncio.Future[bytes]) -> None:
        self.count(-1)
        error = CANCELLED if answer.cancelled() else answer.exception()
        if error is None:
            self._link.send(wrapped({"id": identity, "type": "reply"}, "data", answer.result()))
        else:
            self._error(identity, failure(error) if isinstance(error, EnvironmentFailure) else _bug(error))

    def _step_many(self, identity: int, body: StepManyRequest) -> None:
        _Results(self._link, identity, body, partial(entry_of, self._verbs, self._env), self)

    def _error(self, identity: int | None, error: bytes) -> None:
        self._link.send(wrapped({"id": identity, "type": "error"}, "data", error))


class _Results:
    """The answers of one step_many: a frame once `wait_for` are ready, then one for those of each turn of the loop.

    Few steps are taken in a turn of the loop: the client works on the first answers while the environment takes the
    next steps, and other sockets are not kept waiting.
    """

    def __init__(
        self,
        link: WebSocketSender,
        identity: int,
        body: StepManyRequest,
        ask: Callable[[StepRequest], BackendReply],
        socket: Multiplex,
    ) -> None:
        self._socket, self._count = socket, socket.count
        self._count(len(body.steps))
        self._link, self._identity, self._steps, self._ask = link, identity, body.steps, ask
        self._ready: list[bytes] = []
        self._pending = len(body.steps)
        self._missing = min(body.wait_for, len(body.steps))
        """Entries still to come before the first frame."""
        self._scheduled = False
        self._left = False
        """Some steps wait to be taken."""
        self._turns = turns()
        self._go(0)

    def _go(self, first: int) -> None:
        self._scheduled = True
        index, last, taken, over = first, min(first + TURN, len(self._steps)), 0, self._turns.over
        while index < last and not over():
            try:
                entry = self._ask(self._steps[index])
            except Exception as error:  # noqa: BLE001  (a bug of ours costs its own entry)
                entry = _bug(error)
            if isinstance(entry, bytes):
                self._take(index, entry)
                taken += 1
            else:
                entry.add_done_callback(partial(self._settled, index))
            index += 1
        self._count(-taken)
        self._flush()
        left = index < len(self._steps)
        if left:
            self._turns.later(partial(self._go, index))
        if left != self._left:
            self._left = left
            self._socket.take(1 if left else -1)

    def _settled(self, index: int, entry: asyncio.Future[bytes]) -> None:
        try:
            answer = entry_bytes(entry)
        except Exception as error:  # noqa: BLE001  (a bug of ours costs its own entry)
            answer = _bug(error)
        self._count(-1)
        self._take(index, answer)

    def _take(self, index: int, answer: bytes) -> None:
        self._ready.append(numbered(index, answer))
        self._pending -= 1
        self._missing -= 1
        if not self._scheduled and self._missing <= 0:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._missing > 0 or not self._ready:
            return
        ready, self._ready = self._ready, []
        data = wrapped({"pending": self._pending}, "results", array(ready))
        self._link.send(wrapped({"id": self._identity, "type": "results"}, "data", data))


def _on_behalf_of(caller: RequestCaller, verb: str, call: Callable[..., BackendReply]) -> Callable[..., BackendReply]:
    """Return the call with its caller known where it opens a session: a frame does not come in its socket's context."""
    if verb not in ("reset", "restore"):
        return call

    def with_caller(env: str, body: Any) -> BackendReply:
        token = CALLER.set(caller)
        try:
            return call(env, body)
        finally:
            CALLER.reset(token)

    return with_caller


def _parts(message: Any) -> tuple[int, str, Any]:
    """The id, type and data of a request. Raises BadRequest."""
    if type(message) is not dict:
        raise BadRequest('a frame is an object: {"id": 1, "type": "step", "data": {...}}')
    identity, kind = message.get("id"), message.get("type")
    if type(identity) is not int or not -MAX_ID <= identity < MAX_ID:
        raise BadRequest("a frame needs an `id`: an integer of at most 64 bits, repeated in its answer")
    if type(kind) is not str:
        raise BadRequest("a frame needs a `type`: the name of a verb")
    return identity, kind, message.get("data", {})


def _bug(error: BaseException) -> bytes:
    logging.getLogger(__name__).error("a frame met a bug of the server", exc_info=error)
    return (
        WireError(code="INTERNAL_ERROR", message=f"the server has a bug: {type(error).__name__}")
        .model_dump_json()
        .encode()
    )
