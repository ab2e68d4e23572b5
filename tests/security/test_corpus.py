"""Plays the corpus on the three servers and in sandboxes: nothing in it is an error of the server or the environment.

Requests and frames are drawn from a fixed seed, so that what fails once fails again; a failure names each attack and
what came back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from agentgym import registry
from agentgym_environments.backends.sandbox import Sandbox, SandboxEnded, WorkRefused

from .conftest import Served
from .corpus import SEED, Attack, bodies, endpoints, heads, spoiled, streams
from .corpus_commands import COMMANDS, PLANTED, PROGRAMS
from .corpus_frames import frames, handshakes

pytestmark = pytest.mark.timeout(300)
LIVENESS_S = 5.0
"""For /health beside the attacks, on a machine that is busy with other things."""
CLIENT_S = 60.0
GROWTH_MB = 96
AT_ONCE = 20
"""Well below the 64 connections of one address: one that is closed counts until the server has noticed."""
SILENCE_S = 0.25
"""Without a further byte for so long, an answer is over."""
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")
WORDS = ("apple", "brook", "cloud")
MORE_SOCKETS = {"env": ["/ws", "/envs/threaded/ws?ext=1", "/mcp"], "gateway": ["/envs/echo/ws", "/envs/echo/mcp"]}


@dataclass(frozen=True)
class Played:
    attack: Attack
    content: bytes
    refused: bool
    """No connection could be made."""


async def play(server: Served, attack: Attack) -> Played:
    """Send an attack and collect what comes back."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(*server.address), LIVENESS_S)
    except (OSError, TimeoutError):
        return Played(attack, b"", refused=True)
    content, pending = bytearray(), attack.then
    with contextlib.suppress(OSError), _aborting(writer):
        await _send(writer, attack.data)
        if attack.half_close and not pending:
            writer.write_eof()
        patience = LIVENESS_S if attack.answer else 4 * SILENCE_S
        while part := await _receive(reader, patience):
            content += part
            patience = SILENCE_S
            if pending:
                await _send(writer, pending)
                pending = b""
                if attack.half_close:
                    writer.write_eof()
    return Played(attack, bytes(content), refused=False)


@contextlib.contextmanager
def _aborting(writer: asyncio.StreamWriter) -> Iterator[None]:
    try:
        yield
    finally:
        writer.transport.abort()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    with contextlib.suppress(TimeoutError):  # it need not be read
        await asyncio.wait_for(writer.drain(), LIVENESS_S)


async def _receive(reader: asyncio.StreamReader, patience: float) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(65536), patience)
    except TimeoutError:
        return b""


async def health(server: Served, delays: list[float]) -> None:
    """Ask /health again and again, each time over a new connection, as somebody else would."""
    async with httpx.AsyncClient(base_url=server.url, timeout=CLIENT_S) as client:
        while True:
            start = time.monotonic()
            reply = await client.get("/health", headers={"Connection": "close"})
            assert reply.status_code == 200, reply.text
            delays.append(time.monotonic() - start)
            await asyncio.sleep(0.1)


def play_all(server: Served, attacks: list[Attack]) -> list[Played]:
    """Play the attacks, some at once. Fail when /health does not answer meanwhile."""
    delays: list[float] = []

    async def run() -> list[Played]:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(attack: Attack) -> Played:
            async with room:
                return await play(server, attack)

        probe = asyncio.create_task(health(server, delays))
        played = await asyncio.gather(*(one(attack) for attack in attacks))
        assert not probe.done(), probe.exception()
        probe.cancel()
        return played

    played = asyncio.run(run())
    assert delays
    assert max(delays) < LIVENESS_S
    return played


def begin(server: Served) -> str:
    """The id of a session that nobody attacks; of the inference server, which has none, a word."""
    if server.kind == "inference":
        return "none"
    body = {"index": 0, "split": "train", "episode_id": random.randbytes(8).hex()}
    return httpx.post(server.url + server.post, json=body, timeout=CLIENT_S).json()["session_id"]


def rewards(server: Served, session: str) -> list[float]:
    """What an episode of echo pays, whose solution is known."""
    path = server.url + server.post.replace("/reset", "/step")
    steps = [{"session_id": session, "action": {"text": word}, "step": step} for step, word in enumerate(WORDS)]
    return [httpx.post(path, json=step, timeout=CLIENT_S).json()["reward"] for step in steps]


@contextlib.contextmanager
def unharmed(server: Served, resident_mb: Callable[[], float]) -> Iterator[None]:
    """Fail when the server takes memory meanwhile, or an episode that began before does not end as it should."""
    session, before = begin(server), resident_mb()
    yield
    assert resident_mb() - before < GROWTH_MB
    if server.kind != "inference":
        assert rewards(server, session) == [0, 0, 1]


def errors(played: list[Played]) -> list[str]:
    """Every attack that was a server's error, or got no answer though one was due."""
    found = []
    for one in played:
        statuses = [int(status) for status in STATUS.findall(one.content)]
        bad = any(status >= 500 for status in statuses) or (one.attack.answer and not statuses) or one.refused
        found += [f"{one.attack.name}: {one.content[-300:]!r}"] if bad else []
    return found


def base(session: str) -> dict[str, str]:
    """JSON that servers take, by the name of the field."""
    quoted = json.dumps(session)
    return {
        "session_id": quoted,
        "action": '{"text":"apple"}',
        "steps": f'[{{"session_id":{quoted},"action":{{"text":"apple"}}}}]',
        "split": '"train"',
        "index": "0",
        "messages": '[{"role":"user","content":"hello"}]',
        "prompt": '"hello"',
        "model": '"letters"',
        "max_tokens": "3",
        "reward": "0",
        "name": '"one"',
    }


def test_no_request_is_an_error_of_a_server(server, resident_mb):
    rng = random.Random(SEED)
    name = "letters" if server.kind == "inference" else "echo"
    document = httpx.get(f"{server.url}/openapi.json", timeout=CLIENT_S).json()
    points = endpoints(document, {"env": "echo", "name": name, "episode": "e", "session_id": "s"})
    points = [point for point in points if not point.path.startswith("/environments")]  # they start and stop it
    host, filled = server.url.removeprefix("http://"), base(begin(server))
    attacks = [
        *bodies(points, host, filled, 130, rng),
        *spoiled(points, host, b"{}", 40, rng),
        *heads(points, host, 140, rng),
        *streams(points, host, b"{}", 15, rng),
    ]
    with unharmed(server, resident_mb):
        played = play_all(server, attacks)
    assert errors(played) == []


def closes(content: bytes) -> list[int]:
    """Codes of the close frames among a server's frames."""
    codes, rest = [], content.partition(b"\r\n\r\n")[2]
    while len(rest) > 1:
        size, start = rest[1] & 127, 2
        if size > 125:
            start = 4 if size == 126 else 10
            size = int.from_bytes(rest[2:start], "big")
        if rest[0] & 15 == 8:
            codes.append(int.from_bytes(rest[start : start + 2], "big"))
        rest = rest[start + size :]
    return codes


def test_no_frame_is_an_error_of_a_server(server, resident_mb):
    rng, host = random.Random(SEED), server.url.removeprefix("http://")
    paths = [server.socket, *MORE_SOCKETS.get(server.kind, ["/ws"])]
    attacks = [*frames(paths, host, 300, rng), *handshakes(paths, host, rng)]
    with unharmed(server, resident_mb):
        played = play_all(server, attacks)
    assert errors(played) == []
    opened = [one for one in played if one.content.startswith(b"HTTP/1.1 101")]
    assert len(opened) > 290 or server.kind == "inference"
    assert [one.attack.name for one in opened if 1011 in closes(one.content)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_is_an_error_of_the_sandbox(name):
    with contextlib.suppress(SandboxEnded), Sandbox({"solve.py": b"x = 1\n"}) as box:
        box.run(COMMANDS[name], timeout_s=0.5)
        with contextlib.suppress(WorkRefused):
            box.changes()
        with contextlib.suppress(WorkRefused):
            box.snapshot()
        box.run("echo alive", timeout_s=0.5)


@pytest.fixture(scope="module")
def research() -> Iterator[Any]:
    with contextlib.closing(registry.make("research")) as env:
        yield env


def outcome(env: Any, task: int, *actions: str) -> float:
    """The reward of an episode, which is over with its last action or still goes on."""
    env.reset(seed=0, options={"split": "test", "task": task})
    return sum(env.step(action)[1] for action in (*actions, "submit"))


@pytest.mark.parametrize("name", PLANTED)
def test_no_planted_file_pays(research, name):
    assert outcome(research, len(name) % 2, f"run {PLANTED[name]}") == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_program_without_an_answer_pays(research, name):
    assert outcome(research, len(name) % 2, "run rm solve.py", f"edit solve.py 1-0\n{PROGRAMS[name]}") == 0
