"""`agentgym credit bench`."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentgym.cli.terminal import console
from agentgym.errors import UsageError

if TYPE_CHECKING:
    from agentgym_trainers.config.sections import Config
    from agentgym_trainers.credit_bench.run import Result

ENV = "keydoor-untold"
WARM = ("rollout.max_length=512", "sft.noise=0.9", "sft.check_every=5", "sft.stop_at_success=0.25")
"""A short warm-up on a nearly random solver: a policy that wins about every fourth time has something to learn."""
PLAIN = (
    *(f"{table}=" for table in ("credit", "value", "signals", "shaping", "select", "source", "loss", "eval")),
    "credit.assigner=reinforce",
    "eval.tasks=0",
    "run.steps=0",
)
"""Sections of a recipe that this benchmark ignores."""


@click.group()
def credit() -> None:
    """Measure credit assigners against the true advantage of each turn."""


@credit.command(short_help="Measure every credit assigner against branching.")
@click.argument("env_and_overrides", nargs=-1, metavar="[ENV] [section.key=value]...")
@click.option("--policy", type=click.Path(path_type=Path, file_okay=False), help="A checkpoint, as it is.")
@click.option("--recipe", help="Warm a policy up by this recipe; its environment, unless one is given.")
@click.option("--assigner", "only", multiple=True, help="Only this one; may be given several times.")
@click.option("--groups", default=8, show_default=True, help="Tasks to measure on.")
@click.option("--group-size", default=8, show_default=True, help="Attempts at each.")
@click.option("--continuations", default=20, show_default=True, help="From every visited state, for the truth.")
@click.option(
    "--learn-groups", default=20, show_default=True, help="Other tasks, for critics and signals to learn from."
)
@click.option("--gradient/--no-gradient", default=True, show_default=True, help="Measure the gradient too.")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="[default: runs/credit-bench-ENV]")
def bench(
    env_and_overrides: tuple[str, ...],
    policy: Path | None,
    recipe: str | None,
    only: tuple[str, ...],
    groups: int,
    group_size: int,
    continuations: int,
    learn_groups: int,
    gradient: bool,
    seed: int,
    out: Path | None,
) -> None:
    """Find out how much every turn of some episodes really mattered, by playing on from every visited state many times;
    then measure every assigner on the same episodes.

    ENV must have snapshots. Without a policy or a recipe, a tiny model is warmed up on it. Asked again, the warm-up
    in --out is used again. docs/credit-bench.md says what the columns mean.
    """
    if min(groups, group_size, continuations, learn_groups) < 2:
        raise UsageError("--groups, --group-size, --continuations and --learn-groups are at least 2")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    importlib.import_module("matplotlib")  # now, and not when everything has been measured
    from agentgym_trainers.credit_bench.run import BenchOptions

    config = _config(env_and_overrides, policy, recipe, seed)
    out = out or Path("runs") / f"credit-bench-{config.env.name.rpartition('/')[2].replace(':', '-')}"
    options = BenchOptions(
        groups=groups, group_size=group_size, continuations=continuations, learn_groups=learn_groups,
        width=BenchOptions.width if gradient else 0, seed=seed, only=only,
    )  # fmt: skip
    _show(_run(config, out, options), out)


def _config(given: Sequence[str], policy: Path | None, recipe: str | None, seed: int) -> Config:
    """The configuration that says what is played and by whom."""
    from agentgym_trainers.recipe import resolve

    if policy is not None and recipe is not None:
        raise UsageError("give --policy or --recipe, not both")
    envs = [word for word in given if "=" not in word or "://" in word.partition("=")[0]]
    if len(envs) > 1:
        raise UsageError(f"give one environment, not {' and '.join(envs)}")
    overrides = [word for word in given if word not in envs]
    source: str | Path = recipe or "quickstart"
    env, warm = (envs or [None])[0], WARM
    if policy is not None:
        home = policy.resolve().parent.parent / "config.toml"
        source = home if home.is_file() else source
        warm = (f"model.path={policy}", "sft=")
    elif recipe is not None:
        warm = ()
    if env is None and source == "quickstart":
        env = ENV
    chosen = () if env is None else (f"env.name={env}",)
    split = resolve(source, [*PLAIN, *chosen]).env.split
    return resolve(
        source,
        [*PLAIN, *warm, *chosen, "env.serve=false", f"eval.split={split}", f"run.seed={seed}", *overrides],
    )


def _run(config: Config, out: Path, options: object) -> Result:
    import torch

    from agentgym_trainers import run
    from agentgym_trainers.credit_bench.picture import draw
    from agentgym_trainers.credit_bench.report import write_json
    from agentgym_trainers.credit_bench.run import bench
    from agentgym_trainers.recipe import to_toml

    run.check_folder(config, out, resume=True)
    if config.run.threads is not None:
        torch.set_num_threads(config.run.threads)
    with run.bars() as progress:
        out.mkdir(parents=True, exist_ok=True)
        (out / "config.toml").write_text(to_toml(config), encoding="utf-8")
        result = asyncio.run(bench(config, out, options, progress))  # type: ignore[arg-type]
    write_json(result, out / "bench.json")
    draw(result, out / "bench.png")
    return result


def _show(result: Result, out: Path) -> None:
    from agentgym_trainers.credit_bench.report import summary, tables

    for table in tables(result):
        console.print(table)
    click.echo(summary(result))
    for name, reason in result.refused.items():
        click.echo(f"not measured: {name}: {reason}")
    click.echo(
        f"{sum(result.seconds.values()):.0f} s; every number is in {out / 'bench.json'}; look at {out / 'bench.png'}"
    )
