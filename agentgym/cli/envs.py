"""`agentgym envs list | show | check | baselines | export | new`."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from agentgym import registry
from agentgym.cli.new_env import TEMPLATES, new_env
from agentgym.cli.terminal import console, shorten
from agentgym.errors import AgentGymError, UsageError
from agentgym.spec import EnvSpec


@click.group()
def envs() -> None:
    """The environments that are installed."""


@envs.command("list")
@click.argument("word", required=False)
@click.option("--family", help="Only those of a family: text, games, web ...")
@click.option("--capability", help="Only those with a capability: snapshot, solver ...")
@click.option("--json", "as_json", is_flag=True, help="Every field of every spec, as JSON by id.")
def envs_list(word: str | None, family: str | None, capability: str | None, as_json: bool) -> None:
    """The installed environments, without importing any: ids by family, or one a line with its description.

    WORD keeps those that have it in id, family or description; `agentgym envs list ""` describes all. More of one with
    `envs show`.
    """
    specs = {name: registry.get_spec(name) for name in registry.list_envs()}
    for what, value, there in (
        ("of the family", family, {spec.family for spec in specs.values() if spec.family}),
        ("of the capability", capability, {one for spec in specs.values() for one in spec.capabilities}),
    ):
        if value is not None and value not in there:
            raise UsageError(f"no installed environment is {what} {value!r}; there are {', '.join(sorted(there))}")
    found = {
        name: spec
        for name, spec in specs.items()
        if (family is None or spec.family == family)
        and (capability is None or capability in spec.capabilities)
        and (word is None or word.lower() in f"{name} {spec.family} {spec.description}".lower())
    }
    if as_json:
        click.echo(json.dumps({name: spec.model_dump(mode="json") for name, spec in found.items()}, indent=2))
    elif not found:
        raise UsageError(f"no installed environment has {word!r} in its id, family or description")
    elif word is family is capability is None:
        click.echo("\n".join(_by_family(found)))
    else:
        width = max(len(name) for name in found)
        for name, spec in found.items():
            line = f"{name:{width}}  {' '.join(spec.description.split())}"
            click.echo(shorten(line, console.width) if sys.stdout.isatty() else line)


def _by_family(specs: dict[str, EnvSpec]) -> Iterator[str]:
    """A paragraph of ids for each family."""
    families: dict[str, list[str]] = {}
    for name, spec in specs.items():
        families.setdefault(spec.family or "other", []).append(name)
    for family, names in families.items():
        head = f"{family:9} "
        yield textwrap.fill(" ".join(names), console.width, initial_indent=head, subsequent_indent=" " * 10,
                            break_on_hyphens=False)  # fmt: skip
    yield f"{len(specs)} environments; descriptions: agentgym envs list WORD, --family FAMILY or --capability solver"


@envs.command("show")
@click.argument("name")
def envs_show(name: str) -> None:
    """All that an environment says of itself: NAME is an id, "package.module:Class" or a URL."""
    spec = asyncio.run(_spec(name))
    table = Table(show_header=False)
    for key, value in spec.model_dump().items():
        table.add_row(key, escape(str(value)))
    console.print(table)


async def _spec(name: str) -> Any:
    from agentgym.clients.client import connect

    async with connect(name) as connection:
        return connection.spec


@envs.command("check")
@click.argument("name")
@click.option(
    "--tasks", type=click.IntRange(min=1), default=20, show_default=True, help="How many tasks of a split to try."
)
def envs_check(name: str, tasks: int) -> None:
    """Run the conformance suite on an environment: NAME is an id, "package.module:Class" or a URL."""
    from agentgym.conformance.run import check_environment, check_server

    checked = check_server if registry.is_url(name) else check_environment
    findings = asyncio.run(checked(name, tasks=tasks))
    for finding in findings:
        click.echo(str(finding))
    broken = sum(not finding.ok for finding in findings)
    if broken:
        raise AgentGymError(
            f"{name} breaks {broken} of {len(findings)} rules; each line that begins with FAIL says how"
        )
    click.echo(f"{name} keeps all {len(findings)} rules")


@envs.command("baselines")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--episodes", type=click.IntRange(min=1), default=100, show_default=True, help="Tasks of each split to play."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--concurrency", type=click.IntRange(min=1), default=1, show_default=True, help="Sessions at once.")
def envs_baselines(names: tuple[str, ...], **options: int) -> None:
    """Measure how often an environment's solver, a random policy, a format-only policy and the laziest known policy
    succeed.

    NAME is an id, "package.module:Class" or a URL. Prints a line of Markdown for each split, as the environments'
    READMEs have it: the share of episodes solved in per cent, and the mean score in brackets where that is something
    else. The laziest policy is the one of the environment's `lazy_policies` with the highest mean score; behind a URL
    there are none.
    """
    from agentgym.evaluation.baselines import COLUMNS

    click.echo(f"| id | split | episodes | {' | '.join(COLUMNS)} |\n|---|---|---|---|---|---|---|")
    for name in names:
        asyncio.run(_baselines(name, **options))


async def _baselines(name: str, episodes: int, seed: int, concurrency: int) -> None:
    from agentgym.clients.client import connect
    from agentgym.evaluation.baselines import COLUMNS, baselines, by_column

    async with connect(name) as connection:

        async def open_session() -> Any:
            return connection.session()

        scores = []
        async for one in baselines(
            open_session,
            connection.spec,
            episodes=episodes,
            seed=seed,
            concurrency=concurrency,
            lazy_policies=registry.lazy_policies(name),
        ):
            scores.append(one)
            if one.failed:
                policy = one.name or one.policy
                raise AgentGymError(
                    f"{name} {one.split}: {one.failed} episodes of {policy} failed, the first with {one.error}"
                )
        for split, columns in by_column(scores).items():
            played = max(one.episodes for one in columns.values())
            cells = [columns[column].cell() if column in columns else "–" for column in COLUMNS]
            click.echo(f"| `{name}` | {split} | {played} | {' | '.join(cells)} |")


@envs.command("export")
@click.argument("form", type=click.Choice(("harbor",)), metavar="harbor")
@click.argument("name", metavar="ENV")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder that the tasks go into."
)
@click.option("--split", default="test", show_default=True, help="Split whose tasks are written.")
@click.option("--tasks", type=click.IntRange(min=1), help="The first so many.  [default: all of the split]")
def envs_export(form: str, name: str, out: Path, split: str, tasks: int | None) -> None:
    """Write an environment's tasks as Harbor task folders: for Harbor itself, and whatever else reads its format.

    ENV is an id, with arguments if need be, or "package.module:Class". It says how by its method `harbor_folder`, as
    swe and research do; the tasks are then played here as harbor:folder=DIR.
    """
    from agentgym_environments.tasks.harbor_folder import write_folder

    if registry.is_url(name):
        raise UsageError("tasks are exported where an environment is installed, not from its URL")
    env = registry.make(name)
    try:
        spec, write = env.env_spec, getattr(env, "harbor_folder", None)
        if write is None:
            raise UsageError(f"{name} cannot be exported to Harbor: {_why_not_harbor(spec)}")
        if split not in spec.splits:
            raise UsageError(f"{name} has no split {split!r}; it has {', '.join(spec.splits)}")
        if tasks is not None and tasks > spec.splits[split]:
            raise UsageError(f"{name} has {spec.splits[split]} tasks in {split!r}, so there are no {tasks} to write")
        for index in range(tasks or spec.splits[split]):
            click.echo(str(write_folder(write(split, index), out)))
    finally:
        env.close()
    click.echo(f"\nnext: python -m agentgym_environments.benchmarks.harbor.admit {out}")


def _why_not_harbor(spec: EnvSpec) -> str:
    if spec.tools:
        return "its actions are tool calls, and with a shell the agent could change what lies behind the tools"
    return "its class has no method harbor_folder, which swe, swe-hard, research and research-hard have"


@envs.command("new")
@click.argument("name")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="The package's folder.  [default: ./NAME]"
)
@click.option(
    "--template",
    type=click.Choice(TEMPLATES),
    default="text",
    show_default=True,
    help="text: turns of text; qa: questions of files; tools: tool calls; shell: a sandbox; browser: a web page.",
)
def envs_new(name: str, out: Path | None, template: str) -> None:
    """Write a complete package of an environment called NAME: a small environment that passes its tests, to put yours
    in its place.

    It has an EnvSpec, tasks in splits, a solver, tests, a Dockerfile, and what OpenEnv's tools look for.
    """
    out = out or Path(name)
    for path in new_env(name, out, template):
        click.echo(str(path))
    click.echo(f"\nnext: pip install --editable '{out}[dev]' && agentgym envs check {name}")
