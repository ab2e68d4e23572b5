"""Gets every package that the tasks are of, and pytest:

    python -m agentgym_environments.synthetic.swe.fetch [--cache FOLDER]

A machine without a connection can use the folder then: copy it, and say `swe:cache=FOLDER`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from agentgym.errors import UsageError
from agentgym_environments.synthetic.swe import source
from agentgym_environments.synthetic.swe.tasks import suites


@click.command(help=__doc__)
@click.option("--cache", type=click.Path(path_type=Path), default=None, help="[default: ~/.cache/agentgym]")
def main(cache: Path | None) -> None:
    cache = cache or source.default_cache()
    try:
        for suite in suites().values():
            click.echo(source.fetch(suite.package, cache))
        click.echo(source.tools(cache))
    except UsageError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
