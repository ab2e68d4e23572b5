"""One failure handed to many who wait: each gets the same type and fields, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentgym.clients.transports.http import HttpClient
from agentgym.clients.transports.http_batching import PendingRequest, StepBatcher
from agentgym.clients.transports.websocket import WebSocketTransport
from agentgym.errors import AtCapacity, EnvironmentFailure


class Odd(Exception):
    """An exception that cannot be made from its message alone."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port}")


class OddFailure(EnvironmentFailure):
    """The same among the failures of an environment."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port}")


UNDECODABLE = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


def lane_failures(error: Exception) -> list[Any]:
    """What three steps of one batch raise when sending it raises `error`."""

    async def send(batch: list[PendingRequest]) -> None:
        raise error

    async def main() -> list[Any]:
        lane = StepBatcher(send, patience_s=0.01, largest=8)
        asks = [PendingRequest(b"{}") for _ in range(3)]
        for ask in asks:
            lane.put(ask)
        async with asyncio.timeout(5):
            return await asyncio.gather(*(ask.answer for ask in asks), return_exceptions=True)

    return asyncio.run(main())


def channel_failures(error: Exception) -> list[Any]:
    """What three steps raise when opening the socket raises `error`."""

    async def broken(*_: Any) -> None:
        raise error

    async def main() -> list[Any]:
        calls = HttpClient("http://127.0.0.1:9", transport=None, timeout_s=1.0, retries=0, capacity_wait_s=0.0)
        socket = WebSocketTransport(calls, broken)
        steps = [socket.step(b"{}") for _ in range(3)]
        async with asyncio.timeout(5):
            raised = await asyncio.gather(*steps, return_exceptions=True)
        await socket.close()
        await calls.close()
        return raised

    return asyncio.run(main())


@pytest.mark.parametrize("error", [OddFailure("host", 1), Odd("host", 1), UNDECODABLE], ids=lambda e: type(e).__name__)
def test_every_step_of_a_failed_batch_gets_the_error(error):
    raised = lane_failures(error)
    assert [(type(one), str(one)) for one in raised] == [(type(error), str(error))] * 3


def test_a_failed_batch_keeps_retry_after():
    raised = lane_failures(AtCapacity("full", 7))
    assert [one.retry_after_s for one in raised] == [7, 7, 7]
    assert len({id(one) for one in raised}) == 3


@pytest.mark.parametrize("error", [Odd("host", 1), UNDECODABLE], ids=lambda e: type(e).__name__)
def test_every_request_of_a_socket_gets_the_error(error):
    raised = channel_failures(error)
    assert [(type(one), str(one)) for one in raised] == [(type(error), str(error))] * 3
