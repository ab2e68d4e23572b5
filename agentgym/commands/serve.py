"""`agentgym serve`."""

from __future__ import annotations

import contextlib

import click


@click.command(short_help="Serve worlds over HTTP.")
@click.argument("worlds", nargs=-1, required=True)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, help="0 takes a free one.")
@click.option("--max-sessions", type=click.IntRange(min=1), default=1024, show_default=True)
@click.option(
    "--lease",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds an idle session is kept.",
)
def serve(worlds: tuple[str, ...], host: str, port: int, max_sessions: int, lease: float) -> None:
    """Serve WORLDS over HTTP until interrupted: ids or "package.module:Class".

    Each is at /envs/NAME, the first one also at /.
    """
    from agentgym_servers.serving import run_server

    with contextlib.suppress(KeyboardInterrupt):  # that is how one stops it
        run_server(worlds, host, port, max_sessions=max_sessions, lease_s=lease)
