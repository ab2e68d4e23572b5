"""MCP's standard input and output, with bounds: on a message, on what is no message, and on the time to end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import IO, Any, Protocol

from agentgym_environments.backends.process_group import end_group
from agentgym_environments.base.engine_env import package

MAX_MESSAGE_BYTES = 16 << 20
"""A server that sends a longer line is ended."""
MAX_OTHER_BYTES = 16 << 20
"""A server that writes more than so much of what is no message is ended."""
END_S = 1.0
"""Seconds that a server may take to end once its standard input is closed."""


class ProcessWatcher(Protocol):
    """Notes on a server's process."""

    log: IO[bytes]
    """Takes the standard error."""
    pids: list[int]
    gone: threading.Event
    """Set once nothing more comes from the server."""


@contextlib.asynccontextmanager
async def pipes(
    command: Sequence[str], env: Mapping[str, str], folder: str, watcher: ProcessWatcher
) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server; yield the streams that a client of `mcp` reads and writes. Its process group ends with them."""
    anyio = package("anyio", "mcp")
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=watcher.log,
        env=env,
        cwd=folder,
        start_new_session=True,
        limit=MAX_MESSAGE_BYTES,
    )
    watcher.pids.append(process.pid)
    received, incoming = anyio.create_memory_object_stream(0)
    outgoing, sent = anyio.create_memory_object_stream(0)
    tasks = [
        asyncio.create_task(_read(process, received, watcher)),
        asyncio.create_task(_write(process, sent, received)),
    ]
    try:
        yield incoming, outgoing
    finally:
        await asyncio.shield(_end(process, tasks))
        for stream in (received, incoming, outgoing, sent):
            stream.close()


async def _read(process: asyncio.subprocess.Process, received: Any, watcher: ProcessWatcher) -> None:
    """Hand on the messages of the server. Lines that are none are skipped: some servers print their greetings."""
    adapter = package("mcp_types", "mcp").jsonrpc_message_adapter
    wrapped = package("mcp.shared.message", "mcp").SessionMessage
    anyio = package("anyio", "mcp")
    assert process.stdout is not None
    other = 0
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ValueError, ConnectionError):
        while other < MAX_OTHER_BYTES and (line := await process.stdout.readline()):  # ValueError: a line too long
            try:
                message = adapter.validate_json(line, by_name=False)
            except ValueError:
                other += len(line)
                continue
            await received.send(wrapped(message))
    watcher.gone.set()
    received.close()  # what waits for an answer learns that there is none
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _write(process: asyncio.subprocess.Process, sent: Any, received: Any) -> None:
    assert process.stdin is not None
    try:
        async for message in sent:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()
    except (OSError, RuntimeError):
        received.close()


async def _end(process: asyncio.subprocess.Process, tasks: Sequence[asyncio.Task[None]]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, RuntimeError):
        process.stdin.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            while process.returncode is None:  # wait() would wait for the pipes too, which a child may hold
                await asyncio.sleep(0.005)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    while process.returncode is None:
        await asyncio.sleep(0.005)
    end_group(process.pid)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    process._transport.close()  # type: ignore[attr-defined]  # a child that left the group may hold a pipe
    await asyncio.sleep(0)
