"""Turns of the event loop, and requests that would take more than one."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial

import httpx
import pytest

from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.web import parsing
from agentgym_servers.web.run import serve_in_thread
from agentgym_servers.web.turns import TURN_S, turns


def busy(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_who_waits_longest_is_next():
    order: list[str] = []

    def work(name: str, left: int) -> None:
        busy(TURN_S)
        order.append(name)
        if left:
            turns().later(lambda: work(name, left - 1))

    async def play() -> None:
        for name in "abc":
            turns().later(partial(work, name, 2))
        while len(order) < 9:
            await asyncio.sleep(0)

    asyncio.run(play())
    assert "".join(order) == "abcabcabc"


def test_a_turn_ends_by_the_clock():
    async def play() -> list[bool]:
        turns().over()  # after a pause it is
        over = []
        for _ in range(3):
            await asyncio.sleep(0)
            over.append(turns().over())
            busy(TURN_S)
            over.append(turns().over())
        return over

    assert asyncio.run(play()) == [False, True] * 3


def test_other_things_run_between_two_turns():
    order: list[int] = []
    counts: set[int] = set()

    async def body(number: int) -> None:
        await turns().mine()
        busy(2 * TURN_S)
        order.append(number)

    async def watch() -> None:
        while len(order) < 8:
            counts.add(len(order))
            await asyncio.sleep(0)

    async def play() -> None:
        await asyncio.gather(watch(), *map(body, range(8)))

    asyncio.run(play())
    assert order == list(range(8))
    assert counts >= set(range(1, 8))


def test_a_cancelled_wait_takes_no_turn():
    async def wait() -> None:
        if not turns().over():
            busy(TURN_S)
        await turns().mine()

    async def play() -> list[bool]:
        waits = [asyncio.ensure_future(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        waits[0].cancel()
        await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), 5)
        return [wait.cancelled() for wait in waits]

    assert asyncio.run(play()) == [True, False, False]


@pytest.fixture(scope="module")
def url():
    with serve_in_thread(create_app({"echo": EchoEnv})) as url:
        yield url


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({f"a{index}": 0 for index in range(2000)}, "2002 of its values are wrong or unknown"),
        ({f"a{index}": 0 for index in range(parsing.MAX_KEYS + 1)}, "it has more than 50000 keys or colons"),
        ({"x": [0] * parsing.MAX_VALUES}, "it has more than 500000 values"),
    ],
    ids=["errors", "keys", "values"],
)
def test_what_has_too_much_in_it_is_refused_in_a_sentence(url, body, problem):
    reply = httpx.post(f"{url}/step", json=body, timeout=60)
    assert reply.status_code == 422
    assert problem in reply.json()["message"]
    assert len(reply.json()["detail"]) == 1


def test_a_text_may_have_colons(url):
    session_id = httpx.post(f"{url}/reset", json={}).json()["session_id"]
    text = "key: value\n" * (parsing.MAX_KEYS - 100)
    reply = httpx.post(f"{url}/step", json={"session_id": session_id, "action": {"text": text}}, timeout=60)
    assert reply.status_code == 200, json.dumps(reply.json())[:300]
