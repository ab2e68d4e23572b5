"""The environment server: environments behind HTTP. `create_app` makes the application, `python -m` runs it.

    python -m agentgym_servers.env_server.app agentgym.testing:EchoEnv --port 8000

Each environment answers under `/envs/NAME/...`, the first also at the root; GET /envs lists the environments.
`docs/protocol.md` has the protocol.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Response

from agentgym.errors import UsageError
from agentgym_servers.env_server.local_backend import LocalBackend
from agentgym_servers.env_server.routes import Mode, add_routes
from agentgym_servers.env_server.session_table import SessionTable
from agentgym_servers.env_server.workers.env_call import Factory, envs_of
from agentgym_servers.env_server.workers.pool import WorkerPool
from agentgym_servers.web.cross_origin import SiteGuard
from agentgym_servers.web.fast_path import NO_TELEMETRY
from agentgym_servers.web.logs import Format
from agentgym_servers.web.metrics import PAGE_TYPE, Metrics
from agentgym_servers.web.run import run_app

SWEEP_S = 5.0
"""Leases are looked through at least this often."""


def create_app(
    envs: Sequence[str] | Mapping[str, Factory],
    *,
    max_sessions: int = 1024,
    queue: int = 1024,
    workers: int | None = None,
    worker_memory_mb: int = 4096,
    lease_s: float = 600.0,
    sessions_per_address: int | None = None,
    hosts: Iterable[str] = (),
    replies_kept: int = 4,
    max_body_bytes: int = 16 * 2**20,
    mode: Mode = "simulation",
    clock: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """An application that serves `envs`: ids or "package.module:Class", or names with factories.

    An environment whose spec says `inline` runs in the server's own thread; every other in worker processes, at most
    `workers` (one a core) for each environment, each with `worker_memory_mb` for its sessions. What a factory makes
    runs in threads of this process instead. When `max_sessions` are open, at most `queue` requests may wait for room.

    One address may have `sessions_per_address` of them, by default all. `hosts` are names of the server, beside its
    addresses and localhost.

    A session that nobody uses for `lease_s` seconds ends. Of each session the last `replies_kept` step replies are
    kept for retries. `mode` is OpenEnv's. `clock` (seconds) is for tests. Raises UsageError for an environment that
    cannot be served.
    """
    found = envs_of(envs)
    metrics = Metrics(found)
    pool = WorkerPool(workers, worker_memory_mb, metrics)
    sessions = SessionTable(
        pool,
        metrics,
        max_sessions=max_sessions,
        queue=queue,
        lease_s=lease_s,
        replies_kept=replies_kept,
        sessions_per_address=sessions_per_address,
        clock=clock,
    )
    verbs = LocalBackend(found, sessions)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        reaper = asyncio.create_task(_reap(sessions))
        try:
            yield
        finally:
            reaper.cancel()
            sessions.close_all()
            await pool.close()

    app = FastAPI(title="AgentGym environment server", version="1.0.0", lifespan=lifespan, telemetry=NO_TELEMETRY)
    app.state.sessions = sessions
    app.add_api_route("/metrics", lambda: Response(metrics.render(), media_type=PAGE_TYPE), methods=["GET"])
    add_routes(app, verbs, max_body_bytes=max_body_bytes, lease_s=lease_s, mode=mode)
    app.add_middleware(SiteGuard, hosts=hosts)  # the last added is asked first
    return app


async def _reap(sessions: SessionTable) -> None:
    while True:
        await asyncio.sleep(min(SWEEP_S, sessions.lease_s / 4))
        sessions.sweep()


def run_server(
    envs: Sequence[str] | Mapping[str, Factory],
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    die_with_stdin: bool = False,
    announce: Callable[[str], None] | None = None,
    log_format: Format | None = None,
    **options: Any,
) -> None:
    """Serve environments until SIGINT or SIGTERM, as `run_app` serves an application. `options` are `create_app`'s.

    Raises UsageError when an environment cannot be served or the port is taken.
    """
    app = create_app(envs, **{**options, "hosts": [host, *options.get("hosts", ())]})
    run_app(app, host, port, die_with_stdin=die_with_stdin, announce=announce, log_format=log_format)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve environments until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m agentgym_servers.env_server.app", description=main.__doc__)
    parser.add_argument("envs", nargs="+", help='ids or "package.module:Class"')
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--max-sessions", type=int, default=1024)
    parser.add_argument("--sessions-per-address", type=int, help="of one client (default: all)")
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help="a name of this server")
    parser.add_argument("--queue", type=int, default=1024, help="requests that may wait for room")
    parser.add_argument(
        "--workers", type=int, help="processes for each environment that is not inline (default: one a core)"
    )
    parser.add_argument("--worker-memory-mb", type=int, default=4096)
    parser.add_argument("--lease-s", type=float, default=600.0)
    parser.add_argument("--mode", choices=("simulation", "production"), default="simulation", help="OpenEnv's")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--die-with-stdin", action="store_true", help="stop when standard input ends")
    options = parser.parse_args(arguments)
    try:
        run_server(
            options.envs,
            options.host,
            options.port,
            die_with_stdin=options.die_with_stdin,
            max_sessions=options.max_sessions,
            sessions_per_address=options.sessions_per_address,
            hosts=options.allow_host,
            queue=options.queue,
            workers=options.workers,
            worker_memory_mb=options.worker_memory_mb,
            lease_s=options.lease_s,
            mode=options.mode,
            log_format=options.log_format,
        )
    except UsageError as error:
        sys.exit(f"agentgym: {error}")


if __name__ == "__main__":
    main()
