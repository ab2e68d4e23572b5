"""`agentgym eval`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agentgym.cli.policy import GRAMMARS, close_policy, named_policy
from agentgym.cli.suites import require_data
from agentgym.cli.terminal import Listing, console
from agentgym.errors import AgentGymError, UsageError

if TYPE_CHECKING:
    from agentgym.evaluation.evaluate import Report
    from agentgym.evaluation.suite import Suite

DEFAULT_TASKS = 20


def _suites() -> list[tuple[str, str]]:
    from agentgym.evaluation.suite import load_suite, shipped_suites

    return [(name, load_suite(name).description) for name in shipped_suites()]


@click.command(
    "eval",
    cls=Listing,
    title="Suites",
    names=_suites,
    short_help="Evaluate a policy on a suite, or compare two evaluations.",
)
@click.argument("what", nargs=-1, required=True, metavar="WHAT...")
@click.option("--suite", help="A shipped suite's name or a TOML file.  [default: smoke]")
@click.option("--env", "envs", multiple=True, metavar="ID[:OPTIONS]", help="Instead of a suite; may be given again.")
@click.option("--split", help="With --env.  [default: test]")
@click.option("--tasks", type=click.IntRange(min=1), help=f"With --env: the first N.  [default: {DEFAULT_TASKS}]")
@click.option("--attempts", type=click.IntRange(min=1), help="With --env: attempts at each task.  [default: 1]")
@click.option("--seed", type=click.IntRange(min=0), help="With --env: seed of the environment.  [default: 0]")
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
    help="How a reply holds its action.  [default: the run's, or auto: the environment's own]",
)
@click.option("--trajectories/--no-trajectories", default=True, show_default=True, help="Keep every episode's turns.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary, or the comparison, as JSON.")
def evaluate(what: tuple[str, ...], suite: str | None, as_json: bool, **options: Any) -> None:
    """Evaluate a policy on a suite, or compare two evaluations.

    \b
    agentgym eval CHECKPOINT --suite SUITE         a checkpoint's folder
    agentgym eval URL --model NAME --suite SUITE   an OpenAI-compatible server
    agentgym eval solver --suite SUITE             or random: what a solver, or chance, does
    agentgym eval random --env keydoor --tasks 50  one environment, without a suite
    agentgym eval compare A B                      two evaluations' folders, paired by task

    SUITE is a shipped name (see below) or a TOML file. OPTIONS of --env are constructor arguments, as in
    sokoban:size=6,boxes=1. The key of a URL is read from OPENAI_API_KEY. An evaluation that was stopped goes on when it
    is asked for again; attempts that failed for infrastructure's sake are retried.
    """
    if what[0] == "compare":
        if len(what) != 3:
            raise UsageError("compare takes two evaluations' folders: agentgym eval compare A B")
        return _compare(Path(what[1]), Path(what[2]), as_json)
    if len(what) != 1:
        raise UsageError(f"evaluate one policy at a time, not {len(what)}; to compare: agentgym eval compare A B")
    chosen = _suite(suite, *(options.pop(name) for name in ("envs", "split", "tasks", "attempts", "seed")))
    _show(*asyncio.run(_evaluate(what[0], chosen, as_json=as_json, **options)), as_json)


def _compare(a: Path, b: Path, as_json: bool) -> None:
    from agentgym.evaluation.evaluate import compare
    from agentgym.evaluation.tables import comparison_table

    comparison = compare(a, b)
    if as_json:
        click.echo(json.dumps(asdict(comparison), indent=2, ensure_ascii=False))
    else:
        console.print(comparison_table(comparison))


def _suite(
    named: str | None, envs: Sequence[str], split: str | None, tasks: int | None, attempts: int | None, seed: int | None
) -> Suite:
    """The named suite, or one of the environments that --env names."""
    from agentgym.evaluation.suite import Suite, load_suite

    if not envs:
        if any(option is not None for option in (split, tasks, attempts, seed)):
            raise UsageError("--split, --tasks, --attempts and --seed go with --env; a suite's file has its own")
        chosen = load_suite(named or "smoke")
        require_data(chosen)
        return chosen
    if named is not None:
        raise UsageError("give --suite or --env, not both")
    split, tasks, attempts, seed = split or "test", tasks or DEFAULT_TASKS, attempts or 1, seed or 0
    if len(set(envs)) < len(envs):
        raise UsageError("an environment is given twice; for more attempts at its tasks: --attempts")
    environments = [{"name": env, "split": split, "tasks": tasks} for env in envs]
    at_k = [f"pass@{attempts}", f"pass^{attempts}"] if attempts > 1 else []
    name = f"{'+'.join(envs)} {split} {tasks}x{attempts} seed {seed}"
    metrics = ["success", "score", *at_k, "turns", "invalid", "truncated"]
    return Suite.model_validate(
        {"name": name, "attempts": attempts, "seeds": [seed], "metrics": metrics, "env": environments}
    )


def _folder_name(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in text).strip("-.")


async def _evaluate(
    what: str,
    suite: Suite,
    out: Path | None,
    grammar: Any,
    concurrency: int,
    trajectories: bool,
    as_json: bool,
    **options: Any,
) -> tuple[Report, Path]:
    from agentgym.evaluation.evaluate import evaluate as play_suite
    from agentgym.rollouts.openai_policy import OpenAIPolicy

    if what == "human":
        raise UsageError("a person plays one episode at a time: agentgym play ENV")
    policy, identity, prompt_format = named_policy(what, grammar, concurrency=concurrency, **options)
    of_whom = f"{_folder_name(options['model'])}--{_folder_name(what)}" if "://" in what else _folder_name(what)
    out = out or Path("runs") / "eval" / _folder_name(suite.name) / of_whom
    try:
        if isinstance(policy, OpenAIPolicy):
            await policy.probe()
        with _bar(suite.name, as_json) as on_progress:
            report = await play_suite(
                suite,
                policy,
                out,
                identity=identity,
                concurrency=concurrency,
                prompt_format=prompt_format,
                on_progress=on_progress,
                keep_trajectories=trajectories,
            )
    finally:
        await close_policy(policy)
    return report, out


@contextlib.contextmanager
def _bar(name: str, hidden: bool) -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, disable=hidden)
    task = bar.add_task(name, total=None)

    def update(state: Any) -> None:
        bar.start()  # not before: a mistake is said without a bar
        bar.update(task, total=state.total, completed=state.done)

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()


def _show(report: Report, out: Path, as_json: bool) -> None:
    """Print what was found. Raises AgentGymError when there is nothing to score."""
    if as_json:
        click.echo((out / "summary.json").read_text(encoding="utf-8"), nl=False)
    else:
        console.print(report.table())
        click.echo(f"every attempt is in {out / 'attempts.jsonl'}")
    scored = report.summary.overall.attempts
    if not scored and not report.failed:
        raise UsageError(f"nothing was played: {'; '.join(report.left_out.values())}")
    if not scored:
        raise AgentGymError(f"all {report.failed} attempts failed; the most frequent reason: {report.common_error}")
    if report.failed:
        click.echo(f"note: the most frequent reason of failed attempts: {report.common_error}", err=True)
