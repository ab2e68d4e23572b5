"""`agentgym eval compare | export | verify | view`: what is done with the folders of evaluations."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import click

from agentgym.cli.terminal import console
from agentgym.errors import AgentGymError, UsageError

FORMATS = ("csv", "json", "openai", "atif")


@click.command()
@click.argument("folders", nargs=-1, metavar="A B", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def compare(folders: tuple[Path, ...], as_json: bool) -> None:
    """Compare two evaluations, paired by task and seed."""
    from agentgym.evaluation.evaluate import compare as compare_runs
    from agentgym.evaluation.tables import comparison_table

    if len(folders) != 2:
        raise UsageError("compare takes two evaluations' folders: agentgym eval compare A B")
    comparison = compare_runs(*folders)
    if as_json:
        click.echo(json.dumps(asdict(comparison), indent=2, ensure_ascii=False))
    else:
        console.print(comparison_table(comparison))


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--format", "how", type=click.Choice(FORMATS), required=True, help="What to write; see below.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The file; for atif a folder.")
def export(folder: Path, how: str, out: Path) -> None:
    """Write an evaluation for other programs.

    \b
    csv     a line for each attempt
    json    what was evaluated, and a record for each attempt
    openai  a line of JSON for each attempt: chat messages and tools
    atif    a folder with a JSON file for each attempt, in the Agent Trajectory Interchange Format
    """
    from agentgym.evaluation import atif
    from agentgym.evaluation import export as exports

    writers = {
        "csv": exports.write_csv,
        "json": exports.write_attempts_json,
        "openai": exports.write_openai,
        "atif": atif.write_atif,
    }
    try:
        count = writers[how](folder, out)
    except OSError as error:
        raise UsageError(f"{out} cannot be written ({error.strerror}); name another place") from error
    click.echo(f"{count} attempts are in {out}")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--concurrency", type=click.IntRange(min=1), default=16, show_default=True, help="Episodes in flight.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def verify(folder: Path, concurrency: int, as_json: bool) -> None:
    """Play the recorded actions of an evaluation again, and compare rewards and success.

    The exit status is 1 when an attempt differs, or when none could be played again.
    """
    from agentgym.evaluation.verify import verify as verify_folder

    found = asyncio.run(verify_folder(folder, concurrency))
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2, ensure_ascii=False))
    else:
        for difference in found.differences:
            click.echo(f"differs: {difference}")
        for place, reason in found.left_out.items():
            click.echo(f"not played again: {place}: {reason}")
        click.echo(f"{found.same} attempts gave the same rewards and success")
    if found.differences:
        raise AgentGymError(f"{len(found.differences)} of {found.same + len(found.differences)} attempts differ")
    if not found.same:
        raise AgentGymError(f"nothing of {folder} could be played again")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The page.  [default: FOLDER/viewer.html]")
def view(folder: Path, out: Path | None) -> None:
    """Write an evaluation as a page: its attempts, to filter by task and outcome and to read."""
    from agentgym.evaluation.viewer import write_viewer

    out = out or folder / "viewer.html"
    try:
        count = write_viewer(folder, out)
    except OSError as error:
        raise UsageError(f"{out} cannot be written ({error.strerror}); name another place") from error
    click.echo(f"{count} attempts are in {out}; open it in a browser")
