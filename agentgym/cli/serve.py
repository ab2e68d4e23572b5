"""`agentgym serve`."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from agentgym.cli.terminal import note_if_open


@click.command(short_help="Serve environments over HTTP.")
@click.argument("envs", nargs=-1, required=True, metavar="ENV...")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--max-sessions", type=click.IntRange(min=1), default=1024, show_default=True)
@click.option("--sessions-per-address", type=click.IntRange(min=1), help="Of one client.  [default: all]")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A name of this server; may be repeated.")
@click.option(
    "--lease",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds an idle session is kept.",
)
@click.option(
    "--queue", type=click.IntRange(min=0), default=1024, show_default=True, help="Requests that may wait for room."
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Processes for each environment that is not inline.  [default: one a core]",
)
@click.option("--worker-memory", type=click.IntRange(min=64), default=4096, show_default=True, help="MB a process.")
@click.option(
    "--mode",
    type=click.Choice(["simulation", "production"]),
    default="simulation",
    show_default=True,
    envvar="OPENENV_MODE",
    help="OpenEnv's: production serves no reset, step or state over HTTP, only sockets and tools.",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def serve(
    envs: tuple[str, ...],
    host: str,
    port: int,
    max_sessions: int,
    sessions_per_address: int | None,
    hosts: tuple[str, ...],
    lease: float,
    queue: int,
    workers: int | None,
    worker_memory: int,
    mode: Any,
    log_format: Any,
) -> None:
    """Serve each ENV over HTTP until interrupted: ids or "package.module:Class".

    Each is at /envs/NAME, the first one also at /.
    """
    from agentgym_servers.env_server.app import run_server

    note_if_open(host, port)
    with contextlib.suppress(KeyboardInterrupt):  # that is how one stops it
        run_server(
            envs,
            host,
            port,
            log_format=log_format,
            max_sessions=max_sessions,
            sessions_per_address=sessions_per_address,
            hosts=hosts,
            queue=queue,
            workers=workers,
            worker_memory_mb=worker_memory,
            lease_s=lease,
            mode=mode,
        )
