"""`agentgym runs list | compare | plot`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.table import Table

from agentgym.cli.terminal import console
from agentgym.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from agentgym_trainers.monitoring.comparison.groups import RunGroup

folders_argument = click.argument(
    "folders", nargs=-1, required=True, metavar="FOLDER...", type=click.Path(path_type=Path)
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")


@click.group()
def runs() -> None:
    """Look at training runs side by side. A FOLDER is a run, or has runs below it."""


@runs.command("list")
@folders_argument
@json_option
def list_runs(folders: tuple[Path, ...], as_json: bool) -> None:
    """List runs: how far each has come, and the success of its sampled episodes."""
    from agentgym_trainers.monitoring.comparison.record import find_runs

    lines = [_line(folder) for folder in find_runs(folders)]
    if as_json:
        click.echo(json.dumps(lines, indent=2, ensure_ascii=False))
        return
    table = Table()
    for column in ("run", "recipe", "environment", "step", "last success", "best", "held-out", "state"):
        table.add_column(column, justify="left" if column in ("run", "recipe", "environment", "state") else "right")
    for line in lines:
        success = [_percent(line[name]) for name in ("last", "best", "held_out")]
        steps = "" if line["step"] is None else f"{line['step']} of {line['steps']}"
        table.add_row(
            *(escape(line[name]) for name in ("run", "recipe", "environment")), steps, *success, line["state"]
        )
    console.print(table)


@runs.command("compare")
@folders_argument
@click.option("--threshold", type=click.FloatRange(0, 1), default=0.7, show_default=True, help="Success to reach.")
@json_option
def compare_runs(folders: tuple[Path, ...], threshold: float, as_json: bool) -> None:
    """Compare runs by group: runs that differ in nothing but the seed. The first run's group is the baseline."""
    from agentgym_trainers.monitoring.comparison.groups import compare_groups

    found = compare_groups(_groups(folders), threshold)
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2, ensure_ascii=False))
        return
    table = Table(title=f"{found.environment}, {found.measure}: interquartile means, 95% intervals over runs")
    for column in (
        "group",
        "runs",
        "final, %",
        f"episodes to {100 * threshold:g} %",
        "reached",
        "better than the first",
    ):
        table.add_column(column, justify="left" if column == "group" else "right")
    for one in found.groups:
        least = "" if one.reached == len(one.seeds) else "≥ "
        episodes = f"{least}{one.episodes.estimate:.0f} [{one.episodes.low:.0f}, {one.episodes.high:.0f}]"
        better = (
            "" if one.better is None else f"{one.better.estimate:.2f} [{one.better.low:.2f}, {one.better.high:.2f}]"
        )
        reached = f"{one.reached} of {len(one.seeds)}"
        table.add_row(escape(one.group), str(len(one.seeds)), one.final.percent(), episodes, reached, better)
    console.print(table)
    for one in found.groups:
        if one.final.note:
            click.echo(f"note: {one.group}: {one.final.note}", err=True)


@runs.command("plot")
@folders_argument
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The picture, a .png file.")
def plot_runs(folders: tuple[Path, ...], out: Path) -> None:
    """Draw learning curves by group, with intervals, and the profile of final scores."""
    from agentgym_trainers.monitoring.comparison.picture import draw_groups

    if out.suffix != ".png":
        raise UsageError(f"--out names a .png file, not {out}")
    groups = _groups(folders)
    try:
        draw_groups(groups, out)
    except OSError as error:
        raise UsageError(f"{out} cannot be written ({error.strerror}); name another place") from error
    click.echo(f"{sum(len(group.runs) for group in groups)} runs in {len(groups)} groups are drawn in {out}")


def _groups(folders: tuple[Path, ...]) -> list[RunGroup]:
    from agentgym_trainers.monitoring.comparison.groups import group_runs
    from agentgym_trainers.monitoring.comparison.record import find_runs, load_record

    records = [load_record(folder) for folder in find_runs(folders)]
    for record in records:
        for note in record.notes:
            click.echo(f"note: {record.folder}: {note}", err=True)
    return group_runs(records)


def _line(folder: Path) -> dict[str, Any]:
    """A run as `list` shows it; one that cannot be read has that as its state."""
    from agentgym_trainers.monitoring.comparison.record import load_record

    line: dict[str, Any] = {"run": str(folder), "recipe": "", "environment": "", "state": "unreadable"}
    line |= dict.fromkeys(("seed", "step", "steps", "last", "best", "held_out"))
    try:
        record = load_record(folder)
    except CheckpointError:
        return line
    success = [value for _, value in record.curve()]
    line |= {name: getattr(record, name) for name in ("recipe", "environment", "seed", "step", "steps")}
    line |= {"last": success[-1] if success else None, "best": max(success, default=None)}
    return line | {"held_out": record.held_out(), "state": "finished" if record.finished else "unfinished"}


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"
