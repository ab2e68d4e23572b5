"""`agentgym quickstart | train | sft | report`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentgym import registry
from agentgym.cli.recipes import shipped
from agentgym.cli.terminal import Listing, console
from agentgym.clients.client import connect
from agentgym.errors import UsageError
from agentgym.spec import EnvSpec

if TYPE_CHECKING:
    from agentgym_trainers.config.sections import Config
    from agentgym_trainers.run import RunResult


def _recipes() -> list[tuple[str, str]]:
    """(name, what it does) of the shipped recipes."""
    return [(recipe.name, recipe.summary) for recipe in shipped()]


class Choice(NamedTuple):
    """Choice of the command line: a method, and where it runs."""

    recipe: str
    overrides: tuple[str, ...] = ()
    setup: str | None = None
    env: str | None = None


setup_option = click.option(
    "--setup", metavar="SETUP", help="Where it runs: a shipped setup or a TOML file.  [default: the recipe's own]"
)
env_option = click.option(
    "--env",
    metavar="ENV",
    help="Train on this environment: an id, package.module:Class or a URL.  [default: the setup's own]",
)


@click.command(short_help="Watch a tiny model learn: minutes on two CPU cores.")
@click.argument("overrides", nargs=-1, metavar="[section.key=value]...")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/quickstart"), show_default=True
)
def quickstart(overrides: tuple[str, ...], out: Path) -> None:
    """Serve an environment, warm a tiny model up, train it, and show that it got better. Minutes on two CPU cores.

    Asked again, it goes on where it was stopped.
    """
    _show(_run(Choice("quickstart", overrides), out, go_on=True))


@click.command(cls=Listing, title="Recipes", names=_recipes, short_help="Train an agent by a recipe.")
@click.argument("recipe", required=False, metavar="METHOD")
@click.argument("overrides", nargs=-1, metavar="[section.key=value]...")
@env_option
@setup_option
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="The run's folder.  [default: runs/METHOD]"
)
@click.option("--resume", type=click.Path(path_type=Path, file_okay=False), help="Go on with the run in this folder.")
@click.option(
    "--judge-key", envvar="AGENTGYM_JUDGE_KEY", show_envvar=True, help="API key of the server of a [signals.judge]."
)
@click.option(
    "--scale",
    type=click.Choice(["ray"]),
    help="Spread it over the machines of a Ray cluster; scale.learners=2 and so on say how.",
)
@click.option(
    "--dry-run", is_flag=True, help="Print the resolved recipe as TOML, and on standard error who reads what; and stop."
)
@click.option(
    "--plan", is_flag=True, help="Print the memory and time of a run, and stop: status 1 where it does not fit."
)
@click.option(
    "--gpu-memory",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GB",
    help="A GPU's memory, for --plan.  [default: this machine's, else 80]",
)
def train(
    recipe: str | None,
    overrides: tuple[str, ...],
    env: str | None,
    setup: str | None,
    out: Path | None,
    resume: Path | None,
    judge_key: str | None,
    scale: str | None,
    dry_run: bool,
    plan: bool,
    gpu_memory: float | None,
) -> None:
    """Train an agent by a METHOD: a recipe's name (see below) or a TOML file.

    For example: agentgym train gigpo --env keydoor-5x5 optim.lr=1e-4. Any option is overridden as section.key=value;
    section.key= with nothing behind it removes an option, or a whole section.
    """
    if resume is not None and (dry_run or plan or any(given is not None for given in (recipe, env, setup, out, scale))):
        raise UsageError(
            f"--resume goes on with the run as it is in {resume}: give no recipe, no overrides, no --env, no --setup, "
            "no --out, no --scale, no --dry-run, no --plan"
        )
    if resume is not None:
        _show(_run(None, resume, judge_key=judge_key))
        return
    if dry_run and plan:
        raise UsageError("--dry-run and --plan each print something and stop: give one of them")
    if recipe is None or "=" in recipe:
        names = ", ".join(name for name, _ in _recipes())
        raise UsageError(f"name a recipe ({names}), or a TOML file of your own, before any section.key=value")
    if scale is not None:
        overrides = (f"scale.kind={scale}", *overrides)
    choice = Choice(recipe, overrides, setup, env)
    if dry_run:
        _dry_run(choice)
        return
    if plan:
        _print_plan(choice, gpu_memory)
        return
    _show(_run(choice, out or Path("runs") / Path(recipe).stem, judge_key=judge_key))


@click.command(cls=Listing, title="Recipes", names=_recipes, short_help="Only the supervised warm-up of a recipe.")
@click.argument("recipe", metavar="METHOD")
@click.argument("overrides", nargs=-1, metavar="[section.key=value]...")
@env_option
@setup_option
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="The run's folder.  [default: runs/METHOD-sft]"
)
def sft(recipe: str, overrides: tuple[str, ...], env: str | None, setup: str | None, out: Path | None) -> None:
    """Only the supervised warm-up of a METHOD: a recipe's name (see below) or a TOML file.

    It leaves a checkpoint that `agentgym train METHOD model.path=CHECKPOINT sft=` starts from. Asked again, it goes on
    where it was stopped.
    """
    out = out or Path("runs") / f"{Path(recipe).stem}-sft"
    _run(Choice(recipe, (*overrides, "run.steps=0", "eval.tasks=0"), setup, env), out, go_on=True)
    click.echo(f"checkpoint: {out / 'checkpoints' / 'step-000000'}")


@click.command(short_help="Write a run's report.html.")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
def report(run: Path) -> None:
    """Write RUN/report.html: learning curves, and trajectories with their credit."""
    from agentgym_trainers.monitoring.report.page import write_report

    click.echo(f"report: {write_report(run)}")


def _run(choice: Choice | None, out: Path, *, go_on: bool = False, judge_key: str | None = None) -> RunResult:
    """Carry out a recipe; without one, the run that `out` holds. With `go_on`, a run of the same options there is
    resumed."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from agentgym_trainers import run
    from agentgym_trainers.rollout.sources import SOURCES
    from agentgym_trainers.signals.judge import use_judge_key

    use_judge_key(judge_key)
    resolved = run.load_run(out) if choice is None else _resolve(choice)
    if SOURCES[resolved.source.kind].serves_policy:
        from agentgym_servers.inference.app import serve_episodes
        from agentgym_trainers.rollout.external.serving import use_host

        use_host(serve_episodes)
    if choice is None:
        return asyncio.run(run.run(resolved, out, resume=True))
    there = go_on and (out / "config.toml").is_file()
    if there and run.load_run(out) != resolved:
        raise UsageError(f"{out} holds a run with other options; choose another --out, or delete that one")
    return asyncio.run(run.run(resolved, out, resume=there))


def _resolve(choice: Choice) -> Config:
    """The configuration; what another environment changes in it is printed in one line."""
    from agentgym_trainers import recipe

    env = None
    if choice.env is not None:
        env = recipe.NamedEnv(choice.env, asyncio.run(_spec(choice.env)))
    return recipe.resolve(
        choice.recipe,
        choice.overrides,
        setup=choice.setup,
        env=env,
        on_note=lambda note: click.echo(f"note: {note}", err=True),
    )


async def _spec(name: str) -> EnvSpec:
    if not registry.is_url(name):
        return registry.get_spec(name)
    async with connect(name) as env:
        return env.spec


def _show(outcome: RunResult) -> None:
    from agentgym.evaluation.tables import star_note

    if outcome.before is not None and outcome.after is not None and outcome.comparison is not None:
        tasks = "tasks of 'train'" if outcome.after.summary.envs[0].split == "train" else "held-out tasks"
        lines = [evaluation.summary.overall for evaluation in (outcome.before, outcome.after)]
        gap = outcome.comparison.overall.difference
        title = f"Success on {tasks}, percent, with 95% intervals clustered by task"
        table = Table(title=title, caption=star_note((gap, *(line.success for line in lines))) or None)
        for column in ("", "success", "tasks", "attempts", "mean turns"):
            table.add_column(column, justify="left" if not column else "right")
        for name, line in zip(("before RL", "after RL"), lines, strict=True):
            turns = "–" if line.turns is None else f"{line.turns:.1f}"
            table.add_row(name, line.cell("success"), str(line.tasks), str(line.attempts), turns)
        if gap is not None:
            table.add_section()
            table.add_row("paired difference", gap.percent() + "*" * bool(gap.note), str(gap.n), "", "")
        console.print(table)
    click.echo(f"{outcome.seconds:.0f} s; everything is in {outcome.folder}; look at {outcome.folder / 'report.html'}")


def _dry_run(choice: Choice) -> None:
    from agentgym_trainers import recipe

    resolved = _resolve(choice)
    click.echo(recipe.to_toml(resolved), nl=False)
    table = Table(title="Who reads what")
    for column in ("option", "value", "read by"):
        table.add_column(column)
    for reader, option, value in recipe.wiring(resolved):
        table.add_row(option, escape(value), escape(reader))
    Console(stderr=True, width=console.width).print(table)


def _print_plan(choice: Choice, gpu_memory: float | None) -> None:
    """Print what a run takes; exit with status 1 where it does not fit."""
    from agentgym_trainers.planning.plan import GB, gpu_bytes, plan_run, table_rows

    config = _resolve(choice)
    size = gpu_bytes() if gpu_memory is None else gpu_memory * GB
    plan = plan_run(config, asyncio.run(_spec(config.env.name)), size)
    table = Table(title=f"{config.name} on {config.env.name} with {config.model.path}")
    for column in ("part", "amount", ""):
        table.add_column(column, justify="right" if column == "amount" else "left")
    for section in table_rows(plan):
        for row in section:
            table.add_row(*(escape(cell) for cell in row))
        table.add_section()
    console.print(table)
    for note in plan.notes:
        click.echo(f"note: {note}", err=True)
    if plan.problems:
        click.echo(f"does not fit: {'; '.join(plan.problems)}; {plan.change}", err=True)
        raise SystemExit(1)
