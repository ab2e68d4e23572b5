"""Evaluate a policy on a suite, and compare two evaluations.

    report = await evaluate(load_suite("smoke"), policy, Path("runs/eval"), identity="runs/a/checkpoint-40 sha256:...")
    print(report.table())

A run's folder: run.json (what was evaluated), attempts.jsonl (one line a finished attempt, in order of arrival),
summary.json, and trajectories.jsonl when they are kept. A run that was killed resumes in its folder: finished attempts
are not played again, and attempts that infrastructure failed are. Those count apart and are never zeros.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from agentgym.clients.client import connect
from agentgym.errors import ConfigError, EnvironmentFailure, UsageError
from agentgym.evaluation.run_folder import (
    AttemptRecord,
    describe,
    open_folder,
    read_attempts,
    read_description,
    write_json,
)
from agentgym.evaluation.suite import Suite, SuiteEnv
from agentgym.evaluation.summary import OVERALL, Comparison, Scored, Summary, difference, one_scale, summarize
from agentgym.evaluation.tables import summary_table
from agentgym.rollouts.policy import NotApplicable, Policy
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, Runner
from agentgym.session import Session


class Progress(NamedTuple):
    """Given after every attempt, and with `row` None at the start and when an environment is left out."""

    done: int
    total: int
    row: AttemptRecord | None


@dataclass(frozen=True)
class Report:
    """A finished evaluation."""

    suite: Suite
    identity: str
    rows: tuple[AttemptRecord, ...]
    """Sorted by (env, split, task, seed, attempt)."""
    summary: Summary
    left_out: dict[str, str] = field(default_factory=dict)
    """ "ENV SPLIT" -> why the policy cannot act there. Nothing of it is in `rows`."""

    @property
    def common_error(self) -> str:
        """The most frequent reason of failed attempts, "" when none failed."""
        return Counter(row.error for row in self.rows if row.failed).most_common(1)[0][0] if self.failed else ""

    @property
    def failed(self) -> int:
        return sum(self.summary.overall.failed.values())

    def table(self) -> Table:
        notes = [f"left out: {place} ({why})" for place, why in self.left_out.items()]
        if self.left_out:
            played = len(self.suite.envs) - len(self.left_out)
            notes.append(f"overall: {played} of {len(self.suite.envs)} environments")
        return summary_table(self.summary, self.suite.metrics, f"{self.suite.name}: {self.identity}", notes)


async def evaluate(
    suite: Suite,
    policy: Policy,
    out: Path,
    *,
    identity: str,
    concurrency: int = 64,
    prompt_format: PromptFormat | None = None,
    limits: Limits | None = None,
    retries: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
    server: str | None = None,
    keep_trajectories: bool = False,
) -> Report:
    """Play every (environment, split, task, seed, attempt) of `suite` that `out` does not hold yet.

    `identity` names the policy (a checkpoint's path and hash, or a URL and model). `concurrency` episodes are in
    flight, of one environment after another. With `server`, a gateway's URL, environments named by id are its /envs/ID.
    An environment that cannot be reached fails its attempts; the others are played. One in which the policy cannot act
    at all is left out, and named in the report. Raises ConfigError when `out` holds another run.
    """
    prompt_format, limits = prompt_format or PromptFormat(), limits or Limits()
    about = describe(suite, identity, prompt_format, limits)
    tell = on_progress or (lambda progress: None)
    left_out: dict[str, str] = {}
    with open_folder(out, about, keep_trajectories) as folder:
        planned = [(env, suite.episodes(env)) for env in suite.envs]
        total = sum(len(episodes) for _, episodes in planned)
        plan = [(env, [e for e in episodes if folder.wants(e)]) for env, episodes in planned]
        async with AsyncExitStack() as stack:
            plan = [(env, todo) for env, todo in plan if todo]
            opened = [await _open_env(stack, env, server) for env, _ in plan]
            done = total - sum(len(todo) for _, todo in plan)
            tell(Progress(done, total, None))
            for (env, todo), open_session in zip(plan, opened):
                limits_here, prompt_format_here = env.limits_over(limits), env.prompt_format_over(prompt_format)
                runner = Runner(open_session, prompt_format_here, limits_here, concurrency, retries)
                try:
                    async with aclosing(runner.stream(policy, todo)) as stream:
                        async for _, trajectory in stream:
                            done += 1
                            tell(Progress(done, total, folder.add(trajectory)))
                except NotApplicable as error:
                    left_out[f"{env.name} {env.split}"] = str(error)
                    total -= sum(folder.wants(episode) for episode in todo)
                    tell(Progress(done, total, None))
        rows = tuple(folder.rows[key] for key in sorted(folder.rows))
    report = Report(suite, identity, rows, summarize(rows, suite.metrics), left_out)
    write_json(out / "summary.json", {**about, **asdict(report.summary), "left_out": left_out})
    return report


async def _open_env(stack: AsyncExitStack, env: SuiteEnv, server: str | None) -> Callable[[], Awaitable[Session]]:
    """A way to sessions of `env`; one that fails every episode when the environment cannot be reached."""
    name = env.name
    if server is not None and ":" not in name:
        name = f"{server.rstrip('/')}/envs/{name}"
        if env.kwargs:
            raise ConfigError(
                f"{env.name} has kwargs in the suite, but {server} has built its own environments; drop one"
            )
    try:
        connection = await stack.enter_async_context(connect(name, **env.kwargs))
        env.check(connection.spec)
    except EnvironmentFailure as error:
        kind, why = type(error), str(error)

        async def refuse() -> Session:
            raise kind(why)

        return refuse

    async def open_session() -> Session:
        return connection.session()

    return open_session


def compare(a_dir: Path, b_dir: Path, metric: Scored = "success") -> Comparison:
    """Run b against run a, on the same tasks and seeds.

    Raises CheckpointError where there is no evaluation, UsageError when the two share no scored task.
    """
    a, b = read_attempts(a_dir), read_attempts(b_dir)
    about_a, about_b = read_description(a_dir), read_description(b_dir)
    places = sorted({(row.env, row.split) for row in (*a, *b)})
    envs = []
    for env, split in places:
        of_a, of_b = ([row for row in rows if (row.env, row.split) == (env, split)] for rows in (a, b))
        envs.append(difference(env, split, of_a, of_b, metric))
    differ = [key for key in ("suite", "prompt_format", "max_turns") if about_a[key] != about_b[key]]
    notes = [f"the runs differ in their {key}" for key in differ]
    if all(line.difference is None for line in envs):
        raise UsageError(
            f"{a_dir} and {b_dir} share no scored task, so there is nothing to compare; evaluate one suite"
        )
    overall = difference(OVERALL, "", a, b, metric)
    if metric == "score" and not one_scale((*a, *b)):
        overall = replace(overall, a=None, b=None, difference=None)
    return Comparison(about_a["policy"], about_b["policy"], metric, tuple(envs), overall, tuple(notes))
