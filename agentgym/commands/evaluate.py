"""`agentgym eval`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agentgym.commands.policy import GRAMMARS, close_policy, named_policy
from agentgym.commands.terminal import Listing, console
from agentgym.errors import UsageError


def _suites() -> list[tuple[str, str]]:
    from agentgym.suite import load_suite, shipped_suites

    return [(name, load_suite(name).description) for name in shipped_suites()]


@click.command(
    "eval",
    cls=Listing,
    title="Suites",
    names=_suites,
    short_help="Evaluate a policy on a suite, or compare two evaluations.",
)
@click.argument("what", nargs=-1, required=True, metavar="WHAT...")
@click.option("--suite", default="smoke", show_default=True, help="A shipped suite's name or a TOML file.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="The evaluation's folder; again: it goes on there."
)
@click.option("--model", help="The model's name at a URL.")
@click.option("--temperature", type=click.FloatRange(min=0), help="[default: the run's, or 1]")
@click.option("--max-new-tokens", type=click.IntRange(min=1), help="Of one reply.  [default: the run's, or 256]")
@click.option("--concurrency", type=click.IntRange(min=1), default=64, show_default=True, help="Episodes in flight.")
@click.option(
    "--grammar",
    type=click.Choice(GRAMMARS),
    help="How a reply holds its action.  [default: the run's, or auto: the world's own]",
)
def evaluate(what: tuple[str, ...], suite: str, out: Path | None, **options: Any) -> None:
    """Evaluate a policy on a suite, or compare two evaluations.

    \b
    agentgym eval CHECKPOINT --suite SUITE         a checkpoint's folder
    agentgym eval URL --model NAME --suite SUITE   an OpenAI-compatible server
    agentgym eval expert --suite SUITE             or random: what a solver, or chance, does
    agentgym eval compare A B                      two evaluations' folders, paired by task

    SUITE is a shipped name (see below) or a TOML file. The key of a URL is read from OPENAI_API_KEY. An evaluation
    that was stopped goes on when it is asked for again; attempts that failed for infrastructure's sake are retried.
    """
    from agentgym.evaluate import compare, comparison_table

    if what[0] == "compare":
        if len(what) != 3:
            raise UsageError("compare takes two evaluations' folders: agentgym eval compare A B")
        console.print(comparison_table(compare(Path(what[1]), Path(what[2]))))
        return
    if len(what) != 1:
        raise UsageError(f"evaluate one policy at a time, not {len(what)}; to compare: agentgym eval compare A B")
    asyncio.run(_evaluate(what[0], suite, out, **options))


async def _evaluate(what: str, suite: str, out: Path | None, grammar: Any, concurrency: int, **options: Any) -> None:
    from agentgym.evaluate import evaluate as play_suite
    from agentgym.suite import load_suite

    loaded = load_suite(suite)
    if what == "human":
        raise UsageError("a person plays one episode at a time: agentgym play WORLD")
    policy, identity, harness = named_policy(what, grammar, concurrency=concurrency, **options)
    safe = "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in what).strip("-")
    out = out or Path("runs") / "eval" / loaded.name / safe
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(loaded.name, total=None)
        try:
            result = await play_suite(
                loaded,
                policy,
                out,
                identity=identity,
                concurrency=concurrency,
                harness=harness,
                on_progress=lambda seen: bar.update(task, total=seen.total, completed=seen.done),
            )
        finally:
            await close_policy(policy)
    console.print(result.table())
    click.echo(f"every attempt is in {out / 'attempts.jsonl'}")
