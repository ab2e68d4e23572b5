"""What the verbs print with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console

console = Console() if sys.stdout.isatty() else Console(width=120)


class Listing(click.Command):
    """A verb whose help ends with what can be named."""

    def __init__(self, *args: Any, title: str, names: Callable[[], list[tuple[str, str]]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._title, self._names = title, names

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(self._title):
            formatter.write_dl(self._names())
