"""Running an application with uvicorn: as a process of its own, in a thread of this one, or in its
event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn

from agentgym.errors import UsageError
from agentgym_servers.web.bounds import BOUNDS, Bounds
from agentgym_servers.web.connections import Connections
from agentgym_servers.web.http_protocol import BoundedHttpProtocol
from agentgym_servers.web.logs import Format, configure
from agentgym_servers.web.websocket_handler import LinkProtocol

ANNOUNCEMENT = "AgentGym is serving at "
"""Followed by the URL: the line that a server prints once it answers."""
GRACE_S = 3
"""Requests still running when a server stops get this many seconds."""


def run_app(
    app: Any,
    host: str,
    port: int,
    *,
    die_with_stdin: bool = False,
    announce: Callable[[str], None] | None = None,
    log_format: Format | None = None,
) -> None:
    """Serve an application until SIGINT or SIGTERM; port 0 takes a free one.

    Once the server answers, `announce` is called with its URL (by default a line on standard output). With
    `die_with_stdin` the server stops when its standard input ends, so that it does not outlive the process that
    started it. With `log_format` the logs of this process are set up; without, they are left as they are.
    Raises UsageError when the port is taken.
    """
    if log_format is not None:
        configure(log_format)
    listener = listen(host, port)
    try:
        server = _Server(app, listener, announce or _print_url)
        if die_with_stdin:
            threading.Thread(target=_stop_at_end_of_input, args=(server,), daemon=True).start()
        server.run(sockets=[listener])
    finally:
        listener.close()


@contextlib.contextmanager
def serve_in_thread(app: Any, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve an application from a thread of this process; yields its URL, and stops it at the end."""
    listener = listen(host, port)
    started = threading.Event()
    server = _Server(app, listener, lambda _: started.set())
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not started.wait(0.05):
            if not thread.is_alive():
                raise UsageError("the server ended while starting; its log says why")
        yield server.url
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@contextlib.asynccontextmanager
async def serve_in_loop(app: Any, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve an application in the running event loop, whose signals stay its own; yields its URL, and stops it at the
    end."""
    listener = listen(host, port)
    started = asyncio.Event()
    server = _Server(app, listener, lambda _: started.set())
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    serving, answering = asyncio.ensure_future(server.serve(sockets=[listener])), asyncio.ensure_future(started.wait())
    try:
        await asyncio.wait({answering, serving}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            raise UsageError("the server ended while starting; its log says why")
        yield server.url
    finally:
        answering.cancel()
        server.should_exit = True
        await serving
        listener.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to the address. Raises UsageError when that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UsageError(f"cannot listen on {host} port {port}: {error}; choose another port, or 0") from error
    return listener


class _Server(uvicorn.Server):
    def __init__(self, app: Any, listener: socket.socket, announce: Callable[[str], None]) -> None:
        bounds: Bounds = getattr(app.state, "bounds", BOUNDS)
        connections = Connections(bounds)
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                log_config=None,
                access_log=False,
                timeout_keep_alive=bounds.idle_s,
                timeout_graceful_shutdown=GRACE_S,
                backlog=2048,
                proxy_headers=False,
                http=functools.partial(BoundedHttpProtocol, connections=connections),  # type: ignore[arg-type]
                ws=functools.partial(LinkProtocol, connections=connections),  # type: ignore[arg-type]
                ws_max_size=getattr(app.state, "max_body_bytes", 16 * 2**20),
                ws_per_message_deflate=False,
            )
        )
        host, port = listener.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce(self.url)


def _print_url(url: str) -> None:
    print(f"{ANNOUNCEMENT}{url}", flush=True)


def _stop_at_end_of_input(server: uvicorn.Server) -> None:
    while os.read(sys.stdin.fileno(), 65536):
        pass
    server.should_exit = True
    time.sleep(2 * GRACE_S)  # an environment stuck in the server's own thread cannot be stopped politely
    os._exit(1)
