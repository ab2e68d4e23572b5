"""Baselines: how often an environment is solved by its solver, by chance, by an agent that knows only how actions are
written, and by the laziest known policy.

The solver shows that tasks can be solved. A random policy's rate is what any other is to be compared with. The third
must not be above chance: it reads neither the observation nor the list of available actions, so that an environment
which paid it would pay for form. The fourth is the best of the environment's `lazy_policies`, which do not do what it
teaches: what it earns above chance is reward that says nothing.
"""

from __future__ import annotations

import string
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentgym.env import Action, LazyPolicy, Step
from agentgym.evaluation.stats import Interval, wilson
from agentgym.rollouts.policy import (
    Actor,
    EpisodeSpec,
    ModelResponse,
    Policy,
    RandomPolicy,
    SolverPolicy,
    TextActor,
    TurnContext,
)
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, Runner
from agentgym.rollouts.trajectory import Trajectory
from agentgym.session import Session
from agentgym.spec import EnvSpec

COLUMNS = ("solver", "random", "format only", "laziest")
"""Columns of the table that READMEs show."""
OPENINGS = 8
"""Training tasks that show a format policy what actions look like, where the spec does not list them."""


@dataclass(frozen=True)
class BaselineScore:
    """One policy on one split."""

    split: str
    policy: str
    episodes: int
    """Scored; those that infrastructure failed are not among them."""
    success: Interval | None
    """Share of episodes solved; None where none was scored."""
    score: float
    """Mean sum of rewards."""
    score_error: float
    """Standard error of that mean."""
    failed: int
    error: str = ""
    """The error of the first episode that failed."""
    name: str = ""
    """Description of a "lazy" policy; "" for the others."""

    def cell(self) -> str:
        """Success in per cent; the mean score in brackets where that is not the same; the name, if any."""
        if self.success is None:
            return "–"
        share = self.success.estimate
        shown = f"{100 * share:.0f}" + ("" if abs(self.score - share) < 0.005 else f" ({self.score:.2f})")
        return f"{shown}: {self.name}" if self.name else shown


@dataclass
class FormatPolicy:
    """Says well-formed actions without reading: uniform over `actions`, else over the tools with arguments drawn from
    their schemas."""

    actions: tuple[str, ...]
    seed: int = 0

    def actor(self, episode: EpisodeSpec) -> Actor:
        return _ObservationBlindPolicy(self.actions, episode.rng(self.seed, 2))


@dataclass
class _ObservationBlindPolicy(TextActor):
    actions: tuple[str, ...]
    rng: np.random.Generator = field(repr=False)

    async def act(self, ask: TurnContext) -> ModelResponse:
        action: Action
        if self.actions:
            action = self.actions[int(self.rng.integers(len(self.actions)))]
        else:
            tools = ask.session.spec.tools
            tool = tools[int(self.rng.integers(len(tools)))]
            action = {"name": tool.name, "arguments": any_value(tool.parameters, self.rng)}
        return ModelResponse(ask.prompt_format.render(action, ask.session.spec))


@dataclass
class OneLazyPolicy:
    """One of an environment's `lazy_policies`, as a policy."""

    play: LazyPolicy
    seed: int = 0

    def actor(self, episode: EpisodeSpec) -> Actor:
        return _LazyActor(self.play, episode.rng(self.seed, 3))


@dataclass
class _LazyActor(TextActor):
    play: LazyPolicy
    rng: np.random.Generator = field(repr=False)
    playing: Generator[Action, Step, None] | None = None
    action: Action = ""

    async def act(self, ask: TurnContext) -> ModelResponse:
        with suppress(StopIteration):  # it has returned: the last action again
            if self.playing is None:
                self.playing = self.play(ask.step, self.rng)
                self.action = next(self.playing)
            else:
                self.action = self.playing.send(ask.step)
        return ModelResponse(ask.prompt_format.render(self.action, ask.session.spec))


def any_value(schema: dict[str, Any], rng: np.random.Generator) -> Any:
    """A value that fits a JSON Schema as tools use it: enum, object (optional properties half of the time), array of up
    to two items, integer and number within bounds or 0 to 99, boolean, else a word of six letters."""
    choices = schema.get("enum") or schema.get("anyOf")
    if choices:
        chosen = choices[int(rng.integers(len(choices)))]
        return chosen if "enum" in schema else any_value(chosen, rng)
    kind = schema.get("type", "string")
    if kind == "object":
        required = schema.get("required", ())
        properties = schema.get("properties", {}).items()
        return {name: any_value(inner, rng) for name, inner in properties if name in required or rng.random() < 0.5}
    if kind == "array":
        return [any_value(schema.get("items", {}), rng) for _ in range(int(rng.integers(3)))]
    if kind in ("integer", "number"):
        value = int(rng.integers(schema.get("minimum", 0), schema.get("maximum", 99) + 1))
        return value if kind == "integer" else float(value)
    if kind == "boolean":
        return bool(rng.integers(2))
    return None if kind == "null" else "".join(rng.choice(list(string.ascii_lowercase), 6))


async def example_actions(open_session: Callable[[], Awaitable[Session]], spec: EnvSpec) -> tuple[str, ...]:
    """Actions as they are written: the spec's, else those that the openings of a few training tasks offer and those
    that the solver takes in them."""
    if spec.actions or spec.tools:
        return spec.actions
    split, size = next(iter(spec.splits.items()))
    openings = [EpisodeSpec(spec.id, split, i * size // OPENINGS) for i in range(min(size, OPENINGS))]
    examples: dict[str, None] = {}
    if "available_actions" in spec.info_keys:
        session = await open_session()
        steps = [await session.reset(seed=0, options={"split": split, "task": opening.task}) for opening in openings]
        await session.close()
        examples = dict.fromkeys(action for step in steps for action in step.info.get("available_actions") or ())
    if "solver" in spec.capabilities:
        played = await Runner(open_session, PromptFormat(), Limits(), 1).run(SolverPolicy(), openings)
        examples |= dict.fromkeys(
            t.action for trajectory in played for t in trajectory.turns if isinstance(t.action, str)
        )
    return tuple(examples)


async def baselines(
    open_session: Callable[[], Awaitable[Session]],
    spec: EnvSpec,
    *,
    episodes: int = 100,
    seed: int = 0,
    concurrency: int = 1,
    lazy_policies: Mapping[str, LazyPolicy] | None = None,
) -> AsyncIterator[BaselineScore]:
    """Every (split, policy) as it is done: at most `episodes` tasks of each split, evenly spread, one episode each; of
    a split with a single task, as many seeds.

    A policy that the environment cannot have is left out: no solver, no actions to draw from, no
    `lazy_policies`, each of which is a "lazy" one (who plays both roles of a game earns what it gives itself, so
    that there is none). Where actions cannot be listed, chance draws
    from what the solver says in other tasks. The same `seed` gives the same scores where the environment is
    deterministic.
    """
    examples = await example_actions(open_session, spec)
    policies: dict[str, Policy] = {"solver": SolverPolicy()} if "solver" in spec.capabilities else {}
    if examples or spec.tools:
        listed = spec.actions or "available_actions" in spec.info_keys
        policies["random"] = RandomPolicy(seed) if listed else FormatPolicy(examples, seed + 1)
        policies["format only"] = FormatPolicy(examples, seed)
    for split, size in spec.splits.items():
        plan = _plan(spec.id, split, size, episodes, seed)
        lone = {} if "two_player" in spec.capabilities else lazy_policies or {}
        lazy: dict[str, Policy] = {name: OneLazyPolicy(play, seed) for name, play in lone.items()}
        for name, policy in (policies | lazy).items():
            played = await Runner(open_session, PromptFormat(), Limits(), concurrency, retries=0).run(policy, plan)
            yield _score(split, "lazy", played, name) if name in lazy else _score(split, name, played)


def by_column(scores: Iterable[BaselineScore]) -> dict[str, dict[str, BaselineScore]]:
    """Scores by split and column of the table: "laziest" is the lazy policy with the highest mean score."""
    table: dict[str, dict[str, BaselineScore]] = {}
    for one in scores:
        columns = table.setdefault(one.split, {})
        column = "laziest" if one.policy == "lazy" else one.policy
        columns[column] = max(columns.get(column, one), one, key=lambda either: either.score)
    return table


def _plan(name: str, split: str, size: int, episodes: int, seed: int) -> list[EpisodeSpec]:
    if size == 1:  # only chance makes its episodes different
        return [EpisodeSpec(name, split, 0, seed + i) for i in range(episodes)]
    count = min(size, episodes)
    return [EpisodeSpec(name, split, i * size // count, seed) for i in range(count)]


def _score(split: str, policy: str, played: Sequence[Trajectory], name: str = "") -> BaselineScore:
    scored = [t for t in played if not t.stop.is_failure]
    error = next((t.error for t in played if t.stop.is_failure), "")
    scores = [t.score for t in scored] or [float("nan")]
    success = wilson(sum(bool(t.success) for t in scored), len(scored)) if scored else None
    return BaselineScore(
        split,
        policy,
        len(scored),
        success,
        score=float(np.mean(scores)),
        score_error=float(np.std(scores)) / len(scores) ** 0.5,
        failed=len(played) - len(scored),
        error=error,
        name=name,
    )
