"""The command line: `agentgym VERB`. Imports of servers and trainers happen inside their verbs; environment variables
are read here and nowhere else."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from agentgym import __version__, load
from agentgym.errors import AgentGymError, MissingDependency, UsageError
from agentgym.harness import Harness

if TYPE_CHECKING:
    from agentgym.policy import Policy
    from agentgym_trainers.run import Outcome

console = Console()


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. A user's mistake is one sentence on standard error and exit status 2; a bug keeps its traceback."""
    try:
        verbs.main(args=arguments, prog_name="agentgym", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit("interrupted; what was finished is on disk")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(package)
        if extra is None:
            raise
        sys.exit(_failed(MissingDependency(f"this verb needs {package}: pip install 'agentgym[{extra}]'")))
    except AgentGymError as error:
        sys.exit(_failed(error))


EXTRAS = {"torch": "train", "transformers": "train", "tensorboard": "train", "fastapi": "serve", "uvicorn": "serve"}
"""Which extra brings a package that a verb imports."""


def _failed(error: AgentGymError) -> int:
    click.echo(f"error: {error}", err=True)
    return 2 if isinstance(error, UsageError) else 1


@click.group()
@click.version_option(__version__, prog_name="agentgym")
def verbs() -> None:
    """A gym of real worlds for language-model agents, and the trainer that decides which turn deserves the credit."""


# --- training ---------------------------------------------------------------------------------------------------


@verbs.command()
@click.argument("overrides", nargs=-1, metavar="[section.key=value]...")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/quickstart"), show_default=True)
def quickstart(overrides: tuple[str, ...], out: Path) -> None:
    """Serve a world, warm a tiny model up, train it, and show that it got better. Minutes on two CPU cores."""
    outcome = _run("quickstart", overrides, out, resume=(out / "config.toml").is_file())
    _show(outcome)


@verbs.command()
@click.argument("recipe", required=False)
@click.argument("overrides", nargs=-1, metavar="[section.key=value]...")
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder.  [default: runs/RECIPE]")
@click.option("--resume", type=click.Path(path_type=Path), help="Go on with the run in this folder.")
@click.option("--dry-run", is_flag=True, help="Print the resolved configuration and who reads what, and stop.")
def train(recipe: str | None, overrides: tuple[str, ...], out: Path | None, resume: Path | None, dry_run: bool) -> None:
    """Train an agent by a RECIPE: a shipped name (see below) or a TOML file.

    Any option is overridden as section.key=value, for example optim.lr=1e-4 world.name=wordle.
    """
    from agentgym_trainers import config

    if resume is not None:
        if recipe is not None:
            raise UsageError("--resume goes on with the run's own configuration: give no recipe and no overrides")
        _show(_run(None, (), resume, resume=True))
        return
    if recipe is None:
        raise UsageError(f"name a recipe ({', '.join(config.recipe_names())}), or a TOML file of your own")
    if dry_run:
        _dry_run(config.resolve(recipe, overrides))
        return
    _show(_run(recipe, overrides, out or Path("runs") / Path(recipe).stem))


@verbs.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[section.key=value]...")
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder.  [default: runs/RECIPE-sft]")
def sft(recipe: str, overrides: tuple[str, ...], out: Path | None) -> None:
    """Only the supervised warm-up of a RECIPE: leaves a checkpoint that `train model.path=...` starts from."""
    out = out or Path("runs") / f"{Path(recipe).stem}-sft"
    _run(recipe, (*overrides, "run.steps=0", "eval.tasks=0"), out, resume=(out / "config.toml").is_file())
    console.print(f"checkpoint: {out / 'checkpoints' / 'step-000000'}")


@verbs.command()
@click.argument("run", type=click.Path(path_type=Path))
def report(run: Path) -> None:
    """Write RUN/report.html: learning curves, and trajectories with their credit."""
    from agentgym.report import write_report

    console.print(f"report: {write_report(run)}")


def _run(recipe: str | None, overrides: Sequence[str], out: Path, resume: bool = False) -> Outcome:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from agentgym_trainers import config, run

    resolved = run.load_run(out) if recipe is None else config.resolve(recipe, overrides)
    return asyncio.run(run.run(resolved, out, resume=resume))


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
    console.print(
        f"{outcome.seconds:.0f} s; everything is in {outcome.folder}; look at {outcome.folder / 'report.html'}"
    )


def _dry_run(resolved: Any) -> None:
    from agentgym_trainers import config

    console.print(config.to_toml(resolved), markup=False, highlight=False)
    table = Table(title="Who reads what")
    for column in ("option", "value", "read by"):
        table.add_column(column)
    for reader, option, value in config.wiring(resolved):
        table.add_row(option, value, reader)
    console.print(table)


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
        table.add_row(name, spec.description, str(spec.max_turns), splits, ", ".join(spec.capabilities))
    console.print(table)


@envs.command("show")
@click.argument("name")
def envs_show(name: str) -> None:
    """All that a world says of itself: NAME is an id, "package.module:Class" or a URL."""
    spec = asyncio.run(_spec(name))
    table = Table(show_header=False)
    for key, value in spec.model_dump().items():
        table.add_row(key, str(value))
    console.print(table)


async def _spec(name: str) -> Any:
    from agentgym.client import connect

    async with connect(name) as connection:
        return connection.spec


@envs.command("check")
@click.argument("name")
@click.option("--tasks", default=20, show_default=True, help="How many tasks of a split to try.")
def envs_check(name: str, tasks: int) -> None:
    """Run the conformance suite on a world: NAME is an id, "package.module:Class" or a URL."""
    from agentgym.check import check_server, check_world

    findings = asyncio.run(check_server(name, tasks=tasks) if "://" in name else check_world(name, tasks=tasks))
    for finding in findings:
        console.print(str(finding), markup=False, highlight=False)
    broken = sum(not finding.ok for finding in findings)
    if broken:
        raise UsageError(f"{name} breaks {broken} of {len(findings)} rules")
    console.print(f"{name} keeps all {len(findings)} rules")


@verbs.command()
@click.argument("worlds", nargs=-1, required=True)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, help="0 takes a free one.")
@click.option("--max-sessions", default=1024, show_default=True)
@click.option("--lease", default=600.0, show_default=True, help="Seconds an idle session is kept.")
def serve(worlds: tuple[str, ...], host: str, port: int, max_sessions: int, lease: float) -> None:
    """Serve WORLDS over HTTP: ids or "package.module:Class". Each is at /envs/NAME, the first one also at /."""
    from agentgym_servers.serving import run_server

    run_server(worlds, host, port, max_sessions=max_sessions, lease_s=lease)


@verbs.command()
@click.argument("world")
@click.option("--split", help="[default: the world's first]")
@click.option("--task", default=0, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--policy", default="human", show_default=True, help="human, random, expert, or a checkpoint's folder.")
@click.option("--grammar", type=click.Choice(["last_line", "tagged", "tool_call"]), default="last_line")
def play(world: str, split: str | None, task: int, seed: int, policy: str, grammar: Any) -> None:
    """Play one episode of a WORLD at the terminal, or watch a policy play it."""
    asyncio.run(_play(world, split, task, seed, policy, Harness(grammar=grammar)))


async def _play(world: str, split: str | None, task: int, seed: int, policy: str, harness: Harness) -> None:
    from agentgym.client import connect
    from agentgym.policy import Episode
    from agentgym.rollout import Limits, rollout

    async with connect(world) as connection:
        session = connection.session()
        chosen = _policy(policy, harness=harness)[0]
        episode = Episode(connection.spec.id, split or next(iter(connection.spec.splits)), task, seed)
        trajectory = await rollout(session, chosen.actor(episode), harness, episode, Limits(episode_s=24 * 3600))
        await session.close()
    for turn in trajectory.turns if policy != "human" else ():
        console.print(f"\n[turn {turn.index}] {turn.observation}\n> {turn.reply}", markup=False, highlight=False)
    console.print(f"\n{trajectory.final_observation}", markup=False, highlight=False)
    verdict = "success" if trajectory.success else "no success"
    console.print(f"{verdict}: score {trajectory.score:g} in {len(trajectory.turns)} turns ({trajectory.stop})")
    if trajectory.error:
        raise UsageError(trajectory.error)


# --- evaluation -------------------------------------------------------------------------------------------------


@verbs.command("eval", context_settings={"ignore_unknown_options": False})
@click.argument("what", nargs=-1, required=True, metavar="CHECKPOINT|URL|random|expert  or  compare A B")
@click.option("--suite", default="smoke", show_default=True, help="A shipped suite's name or a TOML file.")
@click.option("--out", type=click.Path(path_type=Path), help="The evaluation's folder; again: it goes on there.")
@click.option("--model", help="The model's name at a URL.")
@click.option("--temperature", type=float, help="[default: the run's, or 1]")
@click.option("--max-new-tokens", type=int, help="Of one reply.  [default: the run's, or 256]")
@click.option("--concurrency", default=64, show_default=True, help="Episodes in flight.")
@click.option("--grammar", type=click.Choice(["last_line", "tagged", "tool_call"]), help="[default: the run's]")
def evaluate(what: tuple[str, ...], suite: str, out: Path | None, **options: Any) -> None:
    """Evaluate a policy on a suite, or compare two evaluations' folders on the tasks they share.

    A URL is an OpenAI-compatible server's; its key is read from OPENAI_API_KEY.
    """
    from agentgym.evaluate import compare, comparison_table

    if what[0] == "compare":
        if len(what) != 3:
            raise UsageError("compare takes two folders: agentgym eval compare A B")
        console.print(comparison_table(compare(Path(what[1]), Path(what[2]))))
        return
    if len(what) != 1:
        raise UsageError(f"evaluate one policy at a time, not {len(what)}; to compare: agentgym eval compare A B")
    asyncio.run(_evaluate(what[0], suite, out, **options))


async def _evaluate(what: str, suite: str, out: Path | None, grammar: Any, concurrency: int, **options: Any) -> None:
    from agentgym.evaluate import evaluate as play_suite
    from agentgym.suite import load_suite

    loaded = load_suite(suite)
    policy, identity, harness = _policy(what, concurrency=concurrency, **options)
    if grammar is not None:
        harness = harness.model_copy(update={"grammar": grammar})
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
    console.print(f"every attempt is in {out / 'attempts.jsonl'}")


def _policy(
    what: str,
    *,
    harness: Harness | None = None,
    model: str | None = None,
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    concurrency: int = 1,
) -> tuple[Policy, str, Harness]:
    """(policy, what identifies it, the harness it was trained with) of a name, a URL or a checkpoint."""
    from agentgym import policy as policies
    from agentgym.openai import OpenAIPolicy

    named = {
        "human": policies.HumanPolicy,
        "random": policies.RandomPolicy,
        "expert": policies.ExpertPolicy,
    }
    if what in named:
        return named[what](), what, harness or Harness()
    if "://" in what:
        if model is None:
            raise UsageError(f"name the model that {what} should run: --model NAME")
        key = os.environ.get("OPENAI_API_KEY")
        remote = OpenAIPolicy(what, model, api_key=key, temperature=temperature, max_tokens=max_new_tokens)
        return remote, f"{model} at {what}", harness or Harness()
    if not Path(what).is_dir():
        raise UsageError(f"{what} is no folder, no URL and none of {', '.join(named)}")
    from agentgym_trainers.run import checkpoint_policy

    loaded = checkpoint_policy(
        Path(what), temperature=temperature, max_new_tokens=max_new_tokens, max_sequences=concurrency
    )
    return loaded.policy, loaded.identity, harness or loaded.harness
