"""`agentgym eval`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agentgym.cli.agents import AGENTS_AT_ONCE, AgentCommand, agent_command, opened_agent
from agentgym.cli.eval_folders import compare, export, verify, view
from agentgym.cli.policy import GRAMMARS, close_policy, named_policy
from agentgym.cli.suites import require_data
from agentgym.cli.terminal import Listing, console
from agentgym.errors import AgentGymError, MissingDependency, UsageError

if TYPE_CHECKING:
    from agentgym.evaluation.cost import Price
    from agentgym.evaluation.evaluate import Report
    from agentgym.evaluation.selection import SuiteSelection
    from agentgym.evaluation.suite import Suite
    from agentgym.rollouts.policy import Policy
    from agentgym.rollouts.prompt_format import PromptFormat

DEFAULT_TASKS = 20
DEFAULT_CONCURRENCY = 64


def _suites() -> list[tuple[str, str]]:
    from agentgym.evaluation.suite import load_suite, shipped_suites

    return [(name, load_suite(name).description) for name in shipped_suites()]


class _Eval(click.Group):
    """Group whose first argument is a command's name, or else what is to be evaluated."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        command = super() if args and args[0] in self.commands else play
        return command.make_context(info_name, args, parent, **extra)


@click.command("eval", cls=Listing, title="Suites", names=_suites)
@click.argument("what", nargs=-1, required=True, metavar="WHAT...")
@click.option(
    "--suite",
    "suites",
    multiple=True,
    help="A shipped suite's name, a TOML file, or all whose data is here. May be given again.  [default: smoke]",
)
@click.option(
    "--env",
    "envs",
    multiple=True,
    metavar="ID[:OPTIONS]",
    help="With --suite: only this one of it. Else instead of a suite. May be given again.",
)
@click.option("--split", help="Without a suite.  [default: test]")
@click.option("--tasks", type=click.IntRange(min=1), help=f"Without a suite: the first N.  [default: {DEFAULT_TASKS}]")
@click.option("--attempts", type=click.IntRange(min=1), help="Without a suite: attempts at each task.  [default: 1]")
@click.option("--seed", type=click.IntRange(min=0), help="Without a suite: seed of the environment.  [default: 0]")
@click.option("--limit", type=click.IntRange(min=1), help="Only N tasks of each environment and split: the first.")
@click.option("--shuffle", type=click.IntRange(min=0), metavar="SEED", help="With --limit: N tasks drawn by a seed.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="The evaluation's folder; again: it goes on there."
)
@click.option("--model", help="The model's name at a URL.")
@click.option("--temperature", type=click.FloatRange(min=0), help="[default: the run's, or 1; at a URL its server's]")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    help="Of one reply.  [default: the run's, or 256; at a URL its server's]",
)
@click.option("--concurrency", type=click.IntRange(min=1), help="Episodes in flight.  [default: 64; with --agent: 8]")
@click.option(
    "--grammar",
    type=click.Choice(GRAMMARS),
    help="How a reply holds its action.  [default: the run's, or auto: the environment's own]",
)
@click.option("--trajectories/--no-trajectories", default=True, show_default=True, help="Keep every episode's turns.")
@click.option(
    "--retry-failed/--no-retry-failed",
    default=True,
    show_default=True,
    help="Going on: play attempts again that infrastructure failed.",
)
@click.option("--agent", metavar="COMMAND", help="A program that plays each attempt with the model of WHAT.")
@click.option("--own-env", is_flag=True, help="With --agent: its environment is its own, and the score its claim.")
@click.option(
    "--agent-timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="With --agent: for one attempt.  [default: 600]",
)
@click.option(
    "--prices",
    type=click.Path(path_type=Path),
    help='TOML file with a table ["MODEL"]: prompt and completion, dollars for a million tokens.',
)
@click.option(
    "--max-cost",
    type=click.FloatRange(min=0, min_open=True),
    metavar="DOLLARS",
    help="With --prices: start no episode once so much is spent.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def play(what: tuple[str, ...], suites: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Evaluate a policy on a suite. Compare, export, verify and view evaluations.

    \b
    agentgym eval CHECKPOINT --suite SUITE         a checkpoint's folder
    agentgym eval URL --model NAME --suite SUITE   an OpenAI-compatible server
    agentgym eval solver --suite SUITE             or random: what a solver, or chance, does
    agentgym eval URL --model NAME --suite all     every suite whose data is here, and a table of them
    agentgym eval random --env keydoor --tasks 50  one environment, without a suite
    agentgym eval CHECKPOINT --agent "python agent.py" --env keydoor   a program of yours, with this model
    agentgym eval compare A B                      two evaluations' folders, paired by task
    agentgym eval export FOLDER --format csv       also json, openai (chat messages), atif (traces)
    agentgym eval verify FOLDER                    rewards of the recorded actions, played again
    agentgym eval view FOLDER                      a page to look at its attempts

    SUITE is a shipped name (see below) or a TOML file. OPTIONS of --env are constructor arguments, as in
    sokoban:size=6,boxes=1. The key of a URL is read from OPENAI_API_KEY. An evaluation that was stopped goes on when it
    is asked for again; a greater --limit goes on in the same folder.
    """
    if len(what) != 1:
        raise UsageError(f"evaluate one policy at a time, not {len(what)}; to compare: agentgym eval compare A B")
    envs, limit, shuffle = options.pop("envs"), options.pop("limit"), options.pop("shuffle")
    alone = [options.pop(name) for name in ("split", "tasks", "attempts", "seed")]
    selection = _selection(envs if suites else (), limit, shuffle)
    refused = {f"--{name}".replace("_", "-"): options[name] for name in ("temperature", "max_new_tokens", "grammar")}
    options["agent"] = agent_command(options["agent"], options.pop("own_env"), options["agent_timeout"], refused)
    options["price"] = _price(options.pop("prices"), options["model"], options["max_cost"])
    if len(suites) > 1 or "all" in suites:
        if any(option is not None for option in alone):
            raise UsageError("--split, --tasks, --attempts and --seed go with --env; a suite's file has its own")
        _play_suites(what[0], suites, selection, as_json, **options)
        return
    chosen = _suite(suites[0] if suites else None, () if suites else envs, *alone)
    _show(*asyncio.run(_evaluate(what[0], chosen, selection, as_json=as_json, **options)), as_json)


evaluate = _Eval(
    "eval",
    [compare, export, verify, view],
    short_help="Evaluate a policy on a suite; compare, export, verify and view evaluations.",
)


def _play_suites(
    what: str,
    names: Sequence[str],
    selection: SuiteSelection,
    as_json: bool,
    out: Path | None,
    max_cost: float | None,
    **options: Any,
) -> None:
    """Evaluate on one suite after another, and print a table of them; a suite's folder is named for it in `out`.

    A suite that cannot be played does not stop the others. Raises AgentGymError at the end where one was named that has
    no score or failed attempts; of "all", where none has a score.
    """
    from agentgym.evaluation.agents.claims import CLAIMED
    from agentgym.evaluation.suite import load_suite, shipped_suites
    from agentgym.evaluation.tables import suites_table

    if max_cost is not None:
        raise UsageError("--max-cost is of one suite: give one --suite")
    if selection.envs:
        raise UsageError("--env chooses among one suite's environments: give one --suite")
    every, rows, absent = "all" in names, [], []
    results: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for suite in [load_suite(name) for name in (shipped_suites() if every else dict.fromkeys(names))]:
        try:
            require_data(suite)
            folder = out / _folder_name(suite.name) if out is not None else None
            report, folder = asyncio.run(
                _evaluate(what, suite, selection, folder, max_cost=None, as_json=as_json, **options)
            )
            results[suite.name] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
            rows.append((suite, report.summary.overall))
            if report.failed:
                problems[suite.name] = f"{report.failed} attempts failed, most of them so: {report.common_error}"
            elif not report.summary.overall.attempts:
                problems[suite.name] = f"nothing was played: {'; '.join(report.left_out.values())}"
        except AgentGymError as error:
            if every and isinstance(error, MissingDependency):
                absent.append(suite.name)
            else:
                problems[suite.name] = str(error)
    if absent:
        lacking = f"not played, because something of theirs is not here: {', '.join(absent)}"
        click.echo(f"{lacking}. What one needs: agentgym suites NAME", err=True)
    if as_json:
        click.echo(json.dumps(results, indent=1))
    else:
        console.print(suites_table(rows))
    if options["agent"] is not None and options["agent"].own_env:
        click.echo(f"note: {CLAIMED}", err=True)
    for name, problem in problems.items():
        click.echo(f"{name}: {problem}", err=True)
    if problems and not (every and results):
        raise AgentGymError(f"without a score, or with failed attempts: {', '.join(problems)}")


def _selection(envs: Sequence[str], limit: int | None, shuffle: int | None) -> SuiteSelection:
    from agentgym.evaluation.selection import SuiteSelection

    if shuffle is not None and limit is None:
        raise UsageError("--shuffle draws the tasks of --limit: give both")
    return SuiteSelection(envs=tuple(envs), limit=limit, shuffle=shuffle)


def _price(prices: Path | None, model: str | None, max_cost: float | None) -> Price | None:
    """The model's price. Raises UsageError where it is needed and not there."""
    from agentgym.evaluation.cost import read_prices

    if prices is None:
        if max_cost is not None:
            raise UsageError("--max-cost needs to know what tokens cost: --prices FILE")
        return None
    known = read_prices(prices)
    if model not in known:
        raise UsageError(f"{prices} has no price of {model or 'a policy without --model'}; it has {', '.join(known)}")
    return known[model]


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
    selection: SuiteSelection,
    out: Path | None,
    grammar: Any,
    concurrency: int | None,
    trajectories: bool,
    retry_failed: bool,
    price: Price | None,
    max_cost: float | None,
    as_json: bool,
    agent: AgentCommand | None,
    agent_timeout: float | None,
    **options: Any,
) -> tuple[Report, Path]:
    from agentgym.evaluation.evaluate import evaluate as play_suite
    from agentgym.rollouts.runner import Limits

    if what == "human":
        raise UsageError("a person plays one episode at a time: agentgym play ENV")
    concurrency = concurrency or (DEFAULT_CONCURRENCY if agent is None else AGENTS_AT_ONCE)
    of_whom = f"{_folder_name(options['model'] or '')}--{_folder_name(what)}" if "://" in what else _folder_name(what)
    of_whom += "" if agent is None else f"--{_folder_name(agent.command)}"
    out = out or Path("runs") / "eval" / _folder_name(suite.name) / of_whom
    if agent is None:
        opening = _opened_policy(what, grammar, concurrency, **options)
    else:
        opening = opened_agent(agent, what, options["model"], out / "agents", concurrency)
    async with opening as (policy, identity, prompt_format, player):
        with _bar(suite.name, as_json) as on_progress:
            report = await play_suite(
                suite,
                policy,
                out,
                identity=identity,
                concurrency=concurrency,
                prompt_format=prompt_format,
                limits=Limits(episode_s=agent_timeout) if agent_timeout is not None else None,
                player=player,
                on_progress=on_progress,
                keep_trajectories=trajectories,
                selection=selection,
                retry_failed=retry_failed,
                price=price,
                max_cost=max_cost,
            )
    return report, out


@contextlib.asynccontextmanager
async def _opened_policy(
    what: str, grammar: Any, concurrency: int, **options: Any
) -> AsyncIterator[tuple[Policy, str, PromptFormat, None]]:
    """A named policy while it is used. Raises PolicyFailure where its URL does not answer."""
    from agentgym.rollouts.openai_policy import OpenAIPolicy

    policy, identity, prompt_format = named_policy(what, grammar, concurrency=concurrency, **options)
    try:
        if isinstance(policy, OpenAIPolicy):
            await policy.probe()
        yield policy, identity, prompt_format, None
    finally:
        await close_policy(policy)


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
    if report.stopped:
        raise AgentGymError(report.stopped.replace("a greater maximum cost", "a greater --max-cost"))
    if report.failed:
        click.echo(f"note: the most frequent reason of failed attempts: {report.common_error}", err=True)
