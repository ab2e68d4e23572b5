"""The command line: `agentgym VERB`. Imports of servers and trainers happen inside their verbs; environment variables
are read here and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tomllib
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from agentgym import __version__, load
from agentgym.errors import AgentGymError, CheckpointError, MissingDependency, UsageError
from agentgym.harness import Harness

if TYPE_CHECKING:
    from agentgym.policy import Policy
    from agentgym_trainers.run import Outcome

console = Console() if sys.stdout.isatty() else Console(width=120)

GRAMMARS = ("last_line", "tagged", "tool_call")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. A user's mistake is one sentence on standard error and exit status 2; a bug keeps its traceback."""
    try:
        verbs.main(args=arguments, prog_name="agentgym", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt) as error:
        if isinstance(error.__cause__, EOFError):  # which click tells as an interrupt
            sys.exit(_failed(UsageError("standard input ended before the episode did")))
        click.echo("interrupted; what was finished is on disk", err=True)
        sys.exit(130)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(package)
        if extra is None:
            raise
        sys.exit(_failed(MissingDependency(f"this verb needs {package}: pip install 'agentgym[{extra}]'")))
    except AgentGymError as error:
        sys.exit(_failed(error))


EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "tokenizers", "safetensors", "jinja2", "tensorboard"), "train"),
    **dict.fromkeys(("fastapi", "starlette", "uvicorn"), "serve"),
}
"""Which extra brings a package that a verb imports."""


def _failed(error: AgentGymError) -> int:
    click.echo(f"error: {error}", err=True)
    return 2 if isinstance(error, UsageError) else 1


def _recipes() -> list[tuple[str, str]]:
    """(name, description) of the shipped recipes, read without the extra "train"."""
    files = [
        file for file in (resources.files("agentgym_trainers") / "recipes").iterdir() if file.name.endswith(".toml")
    ]
    read = [(file.name.removesuffix(".toml"), tomllib.loads(file.read_text(encoding="utf-8"))) for file in files]
    return sorted((name, tree.get("description", "")) for name, tree in read)


def _suites() -> list[tuple[str, str]]:
    from agentgym.suite import load_suite, shipped_suites

    return [(name, load_suite(name).description) for name in shipped_suites()]


class _Listing(click.Command):
    """A verb whose help ends with what can be named."""

    lists: dict[str, tuple[str, Callable[[], list[tuple[str, str]]]]] = {
        "train": ("Recipes", _recipes),
        "sft": ("Recipes", _recipes),
        "eval": ("Suites", _suites),
    }

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        title, named = self.lists[self.name or ""]
        with formatter.section(title):
            formatter.write_dl(named())


@click.group()
@click.version_option(__version__, prog_name="agentgym")
def verbs() -> None:
    """A gym of real worlds for language-model agents, and the trainer that decides which turn deserves the credit."""


# --- training ---------------------------------------------------------------------------------------------------


@verbs.command(short_help="Watch a tiny model learn: minutes on two CPU cores.")
@click.argument("overrides", nargs=-1, metavar="[section.key=value]...")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/quickstart"), show_default=True
)
def quickstart(overrides: tuple[str, ...], out: Path) -> None:
    """Serve a world, warm a tiny model up, train it, and show that it got better. Minutes on two CPU cores.

    Asked again, it goes on where it was stopped.
    """
    _show(_run("quickstart", overrides, out, go_on=True))


@verbs.command(cls=_Listing, short_help="Train an agent by a recipe.")
@click.argument("recipe", required=False)
@click.argument("overrides", nargs=-1, metavar="[section.key=value]...")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="The run's folder.  [default: runs/RECIPE]"
)
@click.option("--resume", type=click.Path(path_type=Path, file_okay=False), help="Go on with the run in this folder.")
@click.option(
    "--dry-run", is_flag=True, help="Print the resolved recipe as TOML, and on standard error who reads what; and stop."
)
def train(recipe: str | None, overrides: tuple[str, ...], out: Path | None, resume: Path | None, dry_run: bool) -> None:
    """Train an agent by a RECIPE: a shipped name (see below) or a TOML file.

    Any option is overridden as section.key=value, for example optim.lr=1e-4 world.name=wordle; section.key= with
    nothing behind it removes an option, or a whole section.
    """
    if resume is not None and (recipe is not None or out is not None or dry_run):
        raise UsageError(
            f"--resume goes on with the run as it is in {resume}: give no recipe, no overrides, no --out, no --dry-run"
        )
    if resume is not None:
        _show(_run(None, (), resume))
        return
    if recipe is None or "=" in recipe:
        names = ", ".join(name for name, _ in _recipes())
        raise UsageError(f"name a recipe ({names}), or a TOML file of your own, before any section.key=value")
    if dry_run:
        _dry_run(recipe, overrides)
        return
    _show(_run(recipe, overrides, out or Path("runs") / Path(recipe).stem))


@verbs.command(cls=_Listing, short_help="Only the supervised warm-up of a recipe.")
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[section.key=value]...")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="The run's folder.  [default: runs/RECIPE-sft]"
)
def sft(recipe: str, overrides: tuple[str, ...], out: Path | None) -> None:
    """Only the supervised warm-up of a RECIPE, by name (see below) or a TOML file.

    It leaves a checkpoint that `agentgym train RECIPE model.path=CHECKPOINT sft=` starts from. Asked again, it goes on
    where it was stopped.
    """
    out = out or Path("runs") / f"{Path(recipe).stem}-sft"
    _run(recipe, (*overrides, "run.steps=0", "eval.tasks=0"), out, go_on=True)
    click.echo(f"checkpoint: {out / 'checkpoints' / 'step-000000'}")


@verbs.command(short_help="Write a run's report.html.")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
def report(run: Path) -> None:
    """Write RUN/report.html: learning curves, and trajectories with their credit."""
    from agentgym.report import write_report

    click.echo(f"report: {write_report(run)}")


def _run(recipe: str | None, overrides: Sequence[str], out: Path, *, go_on: bool = False) -> Outcome:
    """Carry out a recipe; without one, the run that `out` holds. With `go_on`, a run of the same options there is
    resumed."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from agentgym_trainers import config, run

    if recipe is None:
        return asyncio.run(run.run(run.load_run(out), out, resume=True))
    resolved = config.resolve(recipe, overrides)
    there = go_on and (out / "config.toml").is_file()
    if there and run.load_run(out) != resolved:
        raise UsageError(f"{out} holds a run with other options; choose another --out, or delete that one")
    return asyncio.run(run.run(resolved, out, resume=there))


def _show(outcome: Outcome) -> None:
    if outcome.before is not None and outcome.after is not None and outcome.comparison is not None:
        table = Table(title="Success on held-out tasks, percent, with 95% intervals clustered by task")
        for column in ("", "success", "tasks", "attempts", "mean turns"):
            table.add_column(column, justify="left" if not column else "right")
        for name, evaluation in (("before RL", outcome.before), ("after RL", outcome.after)):
            line = evaluation.summary.overall
            turns = "–" if line.turns is None else f"{line.turns:.1f}"
            table.add_row(name, line.cell("success"), str(line.tasks), str(line.attempts), turns)
        gap = outcome.comparison.overall.difference
        if gap is not None:
            table.add_section()
            table.add_row("paired difference", gap.percent(), str(gap.n), "", "")
        console.print(table)
    click.echo(f"{outcome.seconds:.0f} s; everything is in {outcome.folder}; look at {outcome.folder / 'report.html'}")


def _dry_run(recipe: str, overrides: Sequence[str]) -> None:
    from agentgym_trainers import config

    resolved = config.resolve(recipe, overrides)
    click.echo(config.to_toml(resolved), nl=False)
    table = Table(title="Who reads what")
    for column in ("option", "value", "read by"):
        table.add_column(column)
    for reader, option, value in config.wiring(resolved):
        table.add_row(option, escape(value), escape(reader))
    Console(stderr=True, width=console.width).print(table)


# --- worlds -----------------------------------------------------------------------------------------------------


@verbs.group()
def envs() -> None:
    """The worlds that are installed."""


@envs.command("list")
def envs_list() -> None:
    """Every installed world, without importing any."""
    table = Table()
    for column in ("id", "what it is", "max turns", "splits", "can"):
        table.add_column(column)
    for name in load.names():
        spec = load.spec(name)
        splits = ", ".join(f"{split} {tasks}" for split, tasks in spec.splits.items())
        table.add_row(name, escape(spec.description), str(spec.max_turns), splits, ", ".join(spec.capabilities))
    console.print(table)


@envs.command("show")
@click.argument("name")
def envs_show(name: str) -> None:
    """All that a world says of itself: NAME is an id, "package.module:Class" or a URL."""
    spec = asyncio.run(_spec(name))
    table = Table(show_header=False)
    for key, value in spec.model_dump().items():
        table.add_row(key, escape(str(value)))
    console.print(table)


async def _spec(name: str) -> Any:
    from agentgym.client import connect

    async with connect(name) as connection:
        return connection.spec


@envs.command("check")
@click.argument("name")
@click.option(
    "--tasks", type=click.IntRange(min=1), default=20, show_default=True, help="How many tasks of a split to try."
)
def envs_check(name: str, tasks: int) -> None:
    """Run the conformance suite on a world: NAME is an id, "package.module:Class" or a URL."""
    from agentgym.check import check_server, check_world

    findings = asyncio.run(check_server(name, tasks=tasks) if "://" in name else check_world(name, tasks=tasks))
    for finding in findings:
        click.echo(str(finding))
    broken = sum(not finding.ok for finding in findings)
    if broken:
        raise AgentGymError(
            f"{name} breaks {broken} of {len(findings)} rules; each line that begins with FAIL says how"
        )
    click.echo(f"{name} keeps all {len(findings)} rules")


@verbs.command(short_help="Serve worlds over HTTP.")
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


@verbs.command(short_help="Play an episode at the terminal, or watch a policy play it.")
@click.argument("world")
@click.option("--split", help="[default: the world's first]")
@click.option("--task", default=0, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--policy", default="human", show_default=True, help="human, random, expert, a checkpoint's folder or a URL."
)
@click.option("--model", help="The model's name at a URL.")
@click.option("--grammar", type=click.Choice(GRAMMARS), help="[default: the policy's, or last_line]")
def play(world: str, grammar: Any, **options: Any) -> None:
    """Play one episode of a WORLD at the terminal, or watch a policy play it.

    WORLD is an id, "package.module:Class" or a URL.
    """
    asyncio.run(_play(world, grammar, **options))


async def _play(
    world: str, grammar: Any, split: str | None, task: int, seed: int, policy: str, model: str | None
) -> None:
    from agentgym.client import connect
    from agentgym.policy import Episode
    from agentgym.rollout import Limits, rollout

    async with connect(world) as connection:
        splits = connection.spec.splits
        split = split or next(iter(splits))
        if split not in splits:
            raise UsageError(f"{world} has no split {split!r}; it has {', '.join(splits)}")
        if not 0 <= task < splits[split]:
            raise UsageError(f"{world} has tasks 0 to {splits[split] - 1} in {split!r}, not {task}")
        chosen, _, harness = _policy(policy, grammar, model=model)
        episode = Episode(connection.spec.id, split, task, seed)
        session = connection.session()
        trajectory = await rollout(session, chosen.actor(episode), harness, episode, Limits(episode_s=24 * 3600))
        await session.close()
    for turn in trajectory.turns if policy != "human" else ():
        click.echo(f"\n[turn {turn.index}] {turn.observation}\n> {turn.reply}")
    click.echo(f"\n{trajectory.final_observation}")
    verdict = "success" if trajectory.success else "no success"
    click.echo(f"{verdict}: score {trajectory.score:g} in {len(trajectory.turns)} turns ({trajectory.stop})")
    if trajectory.error:
        raise AgentGymError(trajectory.error)


# --- evaluation -------------------------------------------------------------------------------------------------


@verbs.command("eval", cls=_Listing, short_help="Evaluate a policy on a suite, or compare two evaluations.")
@click.argument("what", nargs=-1, required=True, metavar="WHAT...")
@click.option("--suite", default="smoke", show_default=True, help="A shipped suite's name or a TOML file.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="The evaluation's folder; again: it goes on there."
)
@click.option("--model", help="The model's name at a URL.")
@click.option("--temperature", type=click.FloatRange(min=0), help="[default: the run's, or 1]")
@click.option("--max-new-tokens", type=click.IntRange(min=1), help="Of one reply.  [default: the run's, or 256]")
@click.option("--concurrency", type=click.IntRange(min=1), default=64, show_default=True, help="Episodes in flight.")
@click.option("--grammar", type=click.Choice(GRAMMARS), help="[default: the run's, or last_line]")
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
    policy, identity, harness = _policy(what, grammar, concurrency=concurrency, **options)
    safe = "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in what).strip("-")
    out = out or Path("runs") / "eval" / loaded.name / safe
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(loaded.name, total=None)
        result = await play_suite(
            loaded,
            policy,
            out,
            identity=identity,
            concurrency=concurrency,
            harness=harness,
            on_progress=lambda seen: bar.update(task, total=seen.total, completed=seen.done),
        )
    console.print(result.table())
    click.echo(f"every attempt is in {out / 'attempts.jsonl'}")


def _policy(
    what: str,
    grammar: Any = None,
    *,
    model: str | None = None,
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    concurrency: int = 1,
) -> tuple[Policy, str, Harness]:
    """(policy, what identifies it, its harness) of a name, a URL or a checkpoint. A checkpoint's harness is the one
    it was trained with; `grammar`, when given, overrides it."""
    from agentgym import policy as policies

    change = {} if grammar is None else {"grammar": grammar}
    named = {"human": policies.HumanPolicy, "random": policies.RandomPolicy, "expert": policies.ExpertPolicy}
    if what in named:
        return named[what](), what, Harness(**change)
    if "://" in what:
        from agentgym.openai import OpenAIPolicy

        if model is None:
            raise UsageError(f"name the model that {what} should run: --model NAME")
        key = os.environ.get("OPENAI_API_KEY")
        remote = OpenAIPolicy(what, model, api_key=key, temperature=temperature, max_tokens=max_new_tokens)
        return remote, f"{model} at {what}", Harness(**change)
    _require_checkpoint(Path(what), list(named))
    from agentgym_trainers.run import checkpoint_policy

    loaded = checkpoint_policy(
        Path(what), temperature=temperature, max_new_tokens=max_new_tokens, max_sequences=concurrency
    )
    return loaded.policy, loaded.identity, loaded.harness.model_copy(update=change)


def _require_checkpoint(path: Path, names: list[str]) -> None:
    """Raises CheckpointError for what is no folder, and for a run's folder where one of its checkpoints is meant."""
    if not path.is_dir():
        raise CheckpointError(f"{path} is no checkpoint's folder, no URL and none of {', '.join(names)}")
    inside = sorted((path / "checkpoints").glob("step-*"))
    if inside:
        raise CheckpointError(f"{path} is a whole run; name one of its checkpoints, the newest is {inside[-1]}")
