"""`agentgym credit bench`, `pairs` and `score`."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentgym.cli.policy import require_checkpoint
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


def judge_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a prompted judge."""
    options = (
        click.option("--judge", "judge_url", help="URL of a language model that judges: http://localhost:8000/v1."),
        click.option("--judge-model", help="Name of that model."),
        click.option("--judge-votes", default=1, show_default=True, help="Answers to each question."),
        click.option("--judge-key", envvar="AGENTGYM_JUDGE_KEY", show_envvar=True, help="API key of that server."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def require_judge(judge_url: str | None, judge_model: str | None, judge_votes: int) -> None:
    """Raise UsageError for half a judge."""
    if judge_url is not None and judge_model is None:
        raise UsageError(f"name the model that judges at {judge_url}: --judge-model NAME")
    if judge_url is None and judge_model is not None:
        raise UsageError("--judge-model needs a server: --judge URL")
    if judge_url is not None and not judge_url.startswith(("http://", "https://")):
        raise UsageError(f"--judge is a URL that begins with http:// or https:// and ends with /v1, not {judge_url!r}")
    if judge_votes < 1:
        raise UsageError("--judge-votes is at least 1")


@click.group()
def credit() -> None:
    """Measure credit assigners and signals against true advantages."""


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
@judge_options
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
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
    judge_url: str | None,
    judge_model: str | None,
    judge_votes: int,
    judge_key: str | None,
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
    require_judge(judge_url, judge_model, judge_votes)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    importlib.import_module("matplotlib")  # now, and not when everything has been measured
    from agentgym_trainers.credit_bench.run import BenchOptions
    from agentgym_trainers.signals.judge import use_judge_key

    use_judge_key(judge_key)
    config = _config(env_and_overrides, policy, recipe, seed)
    out = out or Path("runs") / f"credit-bench-{config.env.name.rpartition('/')[2].replace(':', '-')}"
    options = BenchOptions(
        groups=groups, group_size=group_size, continuations=continuations, learn_groups=learn_groups,
        width=BenchOptions.width if gradient else 0, seed=seed, only=only,
        judge_url=judge_url or "", judge_model=judge_model or "", judge_votes=judge_votes,
    )  # fmt: skip
    _show(_run(config, out, options), out)


def _config(given: Sequence[str], policy: Path | None, recipe: str | None, seed: int) -> Config:
    """The configuration that says what is played and by whom."""
    from agentgym_trainers.recipe import resolve

    if policy is not None and recipe is not None:
        raise UsageError("give --policy or --recipe, not both")
    envs = [word for word in given if "=" not in word or _is_env(word.partition("=")[0])]
    if len(envs) > 1:
        raise UsageError(f"give one environment, not {' and '.join(envs)}")
    overrides = [word for word in given if word not in envs]
    source: str | Path = recipe or "quickstart"
    env, warm = (envs or [None])[0], WARM
    if policy is not None:
        require_checkpoint(policy)
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


def _is_env(before: str) -> bool:
    """True where this stands before the first "=" of an environment: of its URL, or of its first argument."""
    from agentgym_trainers.config.sections import Config

    return "://" in before or (":" in before and before.partition(".")[0] not in Config.model_fields)


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
    with run.withdrawn_if_refused(out), run.bars() as progress:
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
    for name, metrics in result.signals.items():
        _show_judge(name, metrics)
    for name, reason in result.refused.items():
        click.echo(f"not measured: {name}: {reason}")
    click.echo(
        f"{sum(result.seconds.values()):.0f} s; every number is in {out / 'bench.json'}; look at {out / 'bench.png'}"
    )


def _show_judge(name: str, metrics: dict[str, float]) -> None:
    """Print what became of a judge's questions."""
    if "unread" in metrics and name.startswith("judge-"):
        answers = f"{metrics['calls'] + metrics['cached']:.0f} answers ({metrics['cached']:.0f} from the cache)"
        click.echo(f"{name}: {answers}, {metrics['unread']:.0f} unread; {metrics['failed']:.0f} requests failed")


@credit.command(short_help="Write states with the exact value of each action.")
@click.argument("env")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File of JSON lines.")
@click.option("--epsilon", default=0.0, show_default=True, help="Share of random actions in the reference policy.")
@click.option("--discount", type=float, help="[default: the environment's own; frozenlake 0.95]")
@click.option("--split", default="train", show_default=True)
@click.option("--tasks", default=20, show_default=True, help="Tasks, from the first one of the split.")
@click.option("--states", default=100, show_default=True, help="States, drawn from all of those tasks; 0 keeps all.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the draw.")
def pairs(
    env: str, out: Path, epsilon: float, discount: float | None, split: str, tasks: int, states: int, seed: int
) -> None:
    """Write states of ENV with the exact value of each candidate action under a reference policy.

    ENV has a transition table or a small game tree: frozenlake, cliffwalking, taxi, kuhn-poker-self:hands=1.
    docs/credit-bench.md describes the file.
    """
    import numpy as np

    from agentgym import registry
    from agentgym.evaluation.action_values import write_action_values

    if not 0 <= epsilon <= 1:
        raise UsageError(f"--epsilon is a share from 0 to 1, not {epsilon:g}")
    if discount is not None and not 0 < discount <= 1:
        raise UsageError(f"--discount is above 0 and at most 1, not {discount:g}")
    if tasks < 1 or states < 0:
        raise UsageError("--tasks is at least 1, and --states at least 0")
    made = registry.make(env)
    values = getattr(made, "action_values", None)
    if values is None:
        raise UsageError(
            f"{env} has no exact values, for it has no transition table and no small game tree: take frozenlake, "
            "cliffwalking, taxi or kuhn-poker-self:hands=1"
        )
    sizes = made.env_spec.splits
    if split not in sizes:
        raise UsageError(f"{env} has no split {split!r}: take one of {', '.join(sizes)}")
    found = values(split, range(min(tasks, sizes[split])), epsilon=epsilon, discount=discount)
    made.close()
    rng = np.random.default_rng(seed)
    chosen = sorted(rng.permutation(len(found))[: states or None].tolist())
    write_action_values([found[number].model_copy(update={"env": env}) for number in chosen], out)
    click.echo(f"{len(chosen)} states of {len(found)}, reference: {found[0].reference}; {out}")


@credit.command(short_help="Score signals and judges on such a file.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--scorer", "scorers", multiple=True, help='"package.module:function" of your own, or "reference".')
@click.option("--policy", type=click.Path(path_type=Path, file_okay=False), help="A checkpoint: its log-probabilities.")
@judge_options
@click.option(
    "--cache", type=click.Path(path_type=Path, file_okay=False), help="Folder that keeps the judge's answers."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="JSON file of the table.")
def score(
    file: Path,
    scorers: tuple[str, ...],
    policy: Path | None,
    judge_url: str | None,
    judge_model: str | None,
    judge_votes: int,
    judge_key: str | None,
    cache: Path | None,
    seed: int,
    out: Path | None,
) -> None:
    """Measure how well signals and judges order the candidate actions of FILE, which `agentgym credit pairs` wrote."""
    require_judge(judge_url, judge_model, judge_votes)
    from agentgym.evaluation.action_values import read_action_values

    states = read_action_values(file)
    if policy is not None:
        require_checkpoint(policy)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from agentgym_trainers.credit_bench.pair_scores import score_pairs
    from agentgym_trainers.credit_bench.prompted import prompted_judge_at
    from agentgym_trainers.credit_bench.report import pair_table, write_pair_scores
    from agentgym_trainers.signals.judge import use_judge_key

    use_judge_key(judge_key)
    judge = partial(prompted_judge_at, judge_url, judge_model or "", judge_votes, cache) if judge_url else None
    rows, metrics = asyncio.run(score_pairs(states, scorers, judge, policy=policy, seed=seed))
    console.print(pair_table(rows, file.name))
    for name, counts in metrics.items():
        _show_judge(name, counts)
    if judge is None:
        click.echo("not measured: judge-direct, judge-ranking: give --judge URL and --judge-model NAME")
    if out is not None:
        write_pair_scores(rows, metrics, out)
