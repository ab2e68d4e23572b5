"""Consoles and tables of the commands."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console

console = Console() if sys.stdout.isatty() else Console(width=120)


def shorten(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 3].rstrip() + "..."


class Listing(click.Command):
    """A verb whose help ends with what can be named."""

    def __init__(self, *args: Any, title: str, names: Callable[[], list[tuple[str, str]]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._title, self._names = title, names

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(self._title):
            formatter.write_dl(self._names())


def note_if_open(host: str, port: int) -> None:
    """Say that a server without keys listens to more than this machine."""
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = host == "localhost"
    if not here:
        click.echo(
            f"note: whoever reaches {host} port {port} may use this server: it has no keys. Publish a container on "
            "127.0.0.1, or put the gateway in front",
            err=True,
        )
