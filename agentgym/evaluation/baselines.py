"""Rates: how often an environment is solved by its solver, by chance, and by an agent that knows only how actions are
written.

The solver shows that tasks can be solved. A random policy's rate is what any other is to be compared with. The third
must not be above chance: it reads neither the observation nor the list of available actions, so that an environment
which paid it would pay for form.
"""

from __future__ import annotations

import string
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentgym.env import Action
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
from agentgym.session import Session
from agentgym.spec import EnvSpec

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
    failed: int
    error: str = ""
    """The error of the first episode that failed."""

    def cell(self) -> str:
        """Success in per cent; the mean score in brackets where that is not the same."""
        if self.success is None:
            return "–"
        share = self.success.estimate
        return f"{100 * share:.0f}" + ("" if abs(self.score - share) < 0.005 else f" ({self.score:.2f})")


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


async def rates(
    open_session: Callable[[], Awaitable[Session]],
    spec: EnvSpec,
    *,
    episodes: int = 100,
    seed: int = 0,
    concurrency: int = 1,
) -> AsyncIterator[BaselineScore]:
    """Every (split, policy) as it is done: at most `episodes` tasks of each split, evenly spread, one episode each; of
    a split with a single task, as many seeds.

    A policy that the environment cannot have is left out: no solver, no actions to draw from. Where actions cannot be
    listed, chance draws from what the solver says in other tasks. The same `seed` gives the same
    rates where the environment is deterministic.
    """
    examples = await example_actions(open_session, spec)
    policies: dict[str, Policy] = {"solver": SolverPolicy()} if "solver" in spec.capabilities else {}
    if examples or spec.tools:
        listed = spec.actions or "available_actions" in spec.info_keys
        policies["random"] = RandomPolicy(seed) if listed else FormatPolicy(examples, seed + 1)
        policies["format only"] = FormatPolicy(examples, seed)
    for split, size in spec.splits.items():
        count = min(size, episodes)
        plan = [EpisodeSpec(spec.id, split, i * size // count, seed) for i in range(count)]
        if size == 1:  # only chance makes its episodes different
            plan = [EpisodeSpec(spec.id, split, 0, seed + i) for i in range(episodes)]
        for name, policy in policies.items():
            runner = Runner(open_session, PromptFormat(), Limits(), concurrency, retries=0)
            played = await runner.run(policy, plan)
            scored = [t for t in played if not t.stop.is_failure]
            error = next((t.error for t in played if t.stop.is_failure), "")
            score = float(np.mean([t.score for t in scored])) if scored else float("nan")
            success = wilson(sum(bool(t.success) for t in scored), len(scored)) if scored else None
            yield BaselineScore(split, name, len(scored), success, score, len(played) - len(scored), error)
