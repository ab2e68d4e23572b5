"""Verifies tasks by the grader: the package without the bugs is solved, and with them it is not.

    python -m agentgym_environments.synthetic.swe.verify --split test [--tasks FOLDER] [--write]

A task whose bugs no test of `fail_to_pass` shows is named; `--write` takes it out of tasks.jsonl.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from agentgym_environments.synthetic.swe import source as sources
from agentgym_environments.synthetic.swe.grader import judge
from agentgym_environments.synthetic.swe.grading.verdict import PatchVerdict, plain_name
from agentgym_environments.synthetic.swe.source import PackageSource
from agentgym_environments.synthetic.swe.tasks import HERE, SPLITS, PackageSpec, SweTask, as_row, suites, tasks


def grade(
    suite: PackageSpec,
    package: PackageSource,
    files: dict[str, bytes],
    cache: Path,
    fail_to_pass: frozenset[str] = frozenset(),
    backend: str = "auto",
) -> PatchVerdict:
    """The verdict on the package with these files, with time enough for a machine that is busy."""
    limit = 60 + 20 * suite.seconds
    options = {"fail_to_pass": fail_to_pass, "unstable": suite.unstable, "timeout_s": limit, "backend": backend}
    return judge(package, files, cache, **options)


def shows(task: SweTask, verdict: PatchVerdict) -> bool:
    """Return whether a verdict on the broken package says that it is broken, by a test that a fix has to mend."""
    return not verdict.solved and bool(verdict.differing & {plain_name(test) for test in task.fail_to_pass})


@click.command(help=__doc__)
@click.option("--split", "splits", multiple=True, type=click.Choice(SPLITS), default=SPLITS, show_default=True)
@click.option("--tasks", "folder", type=click.Path(path_type=Path, file_okay=False), default=HERE)
@click.option("--cache", type=click.Path(path_type=Path), default=None, help="[default: ~/.cache/agentgym]")
@click.option("--write", is_flag=True, help="Take the tasks that fail out of the folder.")
def main(splits: tuple[str, ...], folder: Path, cache: Path | None, write: bool) -> None:
    cache = cache or sources.default_cache()
    wrong: list[SweTask] = []
    count = 0
    for name, suite in suites(folder).items():
        if suite.split not in splits:
            continue
        package = sources.unpack(suite.package, cache)
        fixed = grade(suite, package, {}, cache)
        click.echo(f"{name}: {len(fixed.matched)} tests and {fixed.planted} planted ones; solved: {fixed.solved}")
        if not fixed.solved:
            click.echo(f"  differing: {sorted(fixed.differing)[:10]}, planted: {fixed.planted_differing}")
        for task in [task for task in tasks(folder) if task.package == name]:
            verdict = grade(suite, package, task.broken(package), cache, task.fail_to_pass)
            count += 1
            wanted = {plain_name(test) for test in task.fail_to_pass}
            places = ", ".join(f"{edit.path}:{edit.line}" for edit in task.edits)
            click.echo(
                f"  {places}: {len(wanted & verdict.differing)} of {len(wanted)} tests differ, "
                f"{len(verdict.differing - wanted)} others, "
                f"{verdict.planted_differing} of {verdict.planted} planted ones"
            )
            if not shows(task, verdict):
                wrong.append(task)
                click.echo("    no test of fail_to_pass differs")
    click.echo(f"{count - len(wrong)} of {count} tasks are not solved as they are, by a test of fail_to_pass")
    if write and wrong:
        rows = [json.dumps(as_row(task)) for task in tasks(folder) if task not in wrong]
        (folder / "tasks.jsonl").write_text("\n".join([*rows, ""]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
