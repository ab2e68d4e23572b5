"""A TCP proxy that loses, stalls, delays, repeats and cuts what passes, by seeded chance. HTTP/1.1 and WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, fields

LATE_S = 0.3
"""A repeated message comes at most this much after the first."""


@dataclass(frozen=True)
class Weather:
    """The chances of what becomes of a message, in each direction; else it passes."""

    lose: float = 0.02
    """It is dropped and so is the connection."""
    stall: float = 0.005
    """It is dropped, and everything after it in its direction; the connection stays open."""
    delay: float = 0.2
    """It and those after it wait up to `delay_s`."""
    twice: float = 0.05
    """It is sent again, a moment later: a request over HTTP through another connection, as a retrying proxy does."""
    cut: float = 0.02
    """Some of its bytes pass, then the connection ends."""
    delay_s: float = 0.1

    def fate(self, chance: random.Random) -> str:
        names = [field.name for field in fields(self) if field.name != "delay_s"]
        weights = [getattr(self, name) for name in names]
        return chance.choices([*names, "pass"], [*weights, 1 - sum(weights)])[0]


class Proxy:
    """Listens on a loopback port; each connection has a plan of its own, drawn from the seed and its number."""

    def __init__(self, port: int, weather: Weather, seed: int) -> None:
        self.weather, self.seed = weather, seed
        self.fates: Counter[str] = Counter()
        self._behind = port
        self._connections = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Yields the proxy's URL."""
        server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            while self._tasks:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await asyncio.sleep(0)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer, f"{self.seed}/{self._connections}"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, plan: str) -> None:
        writers = [writer]
        try:
            their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._behind)
            writers.append(their_writer)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, their_writer, random.Random(f"{plan} there"), pumps, back=False))
                pumps.create_task(self._pump(their_reader, writer, random.Random(f"{plan} back"), pumps, back=True))
        except* (OSError, asyncio.IncompleteReadError):  # one side has ended, or the proxy ended it
            pass
        finally:
            for one in writers:
                one.transport.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        chance: random.Random,
        tasks: asyncio.TaskGroup,
        *,
        back: bool,
    ) -> None:
        framed = False
        while True:
            message, upgraded = await (frame(reader) if framed else http_message(reader))
            fate = self.weather.fate(chance)
            self.fates[fate] += 1
            if fate == "lose":
                raise ConnectionResetError("lost, as planned")
            if fate == "stall":
                while await reader.read(2**16):
                    pass
                raise ConnectionResetError("the stalled side has ended")
            if fate == "cut":
                writer.write(message[: chance.randrange(len(message))])
                await writer.drain()
                await asyncio.sleep(0.01)  # so that the bytes leave before the connection ends
                raise ConnectionResetError("cut, as planned")
            if fate == "delay":
                await asyncio.sleep(chance.uniform(0, self.weather.delay_s))
            writer.write(message)
            await writer.drain()
            if fate == "twice" and back:
                writer.write(message)
            elif fate == "twice":
                again = _later(writer, message, chance) if framed else self._elsewhere(message, chance)
                tasks.create_task(again)
            framed = framed or upgraded

    async def _elsewhere(self, message: bytes, chance: random.Random) -> None:
        """Send an HTTP request again through a connection of its own; nobody sees the reply."""
        await asyncio.sleep(chance.uniform(0, LATE_S))
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._behind)
            try:
                writer.write(message)
                await http_message(reader)
            finally:
                writer.transport.abort()


async def _later(writer: asyncio.StreamWriter, message: bytes, chance: random.Random) -> None:
    await asyncio.sleep(chance.uniform(0, LATE_S))
    if not writer.is_closing():
        writer.write(message)


async def http_message(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """An HTTP message, and whether WebSocket frames come after it."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    upgraded = re.search(rb"(?i)\r\nupgrade: *websocket", head) is not None
    return head + await reader.readexactly(int(length[1]) if length else 0), upgraded


async def frame(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """A WebSocket frame as it travels, its mask included."""
    head = await reader.readexactly(2)
    size = head[1] & 127
    if extended := {126: 2, 127: 8}.get(size):
        head += await reader.readexactly(extended)
        size = int.from_bytes(head[2:])
    if head[1] & 128:
        size += 4
    return head + await reader.readexactly(size), True
