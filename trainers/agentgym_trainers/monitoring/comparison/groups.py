"""Groups of runs that differ in nothing but the seed, and their comparison."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentgym.errors import ConfigError
from agentgym.evaluation.stats import Interval, first_reaching, probability_of_improvement, stratified_bootstrap
from agentgym_trainers.monitoring.comparison.record import MEASURE, RunRecord

BOOKKEEPING = ("description", "paper", "tracking", "run.seed", "run.threads", "run.checkpoint_every",
               "run.keep_checkpoints", "run.trajectories_every")  # fmt: skip
"""Options that do not tell two groups apart."""
WINDOW = 5
"""Steps whose mean is a point of a curve of sampled episodes, and the final score without a held-out evaluation."""
REPLICATIONS = 10_000


@dataclass(frozen=True)
class RunGroup:
    """Runs of one configuration."""

    name: str
    """The recipe, and the options in which it differs from other groups of that recipe."""
    runs: tuple[RunRecord, ...]


@dataclass(frozen=True)
class GroupResult:
    """A group's numbers; intervals resample runs."""

    group: str
    seeds: tuple[int, ...]
    final: Interval
    """Interquartile mean of the final score."""
    episodes: Interval
    """Interquartile mean of the episodes until the threshold; a run that does not reach it counts all it played."""
    reached: int
    """Runs that reach the threshold."""
    better: Interval | None
    """Probability that a run's final score is above one of the first group's; None for that group."""


@dataclass(frozen=True)
class GroupComparison:
    """Groups side by side."""

    environment: str
    measure: str
    """Final score: held-out success if every run has it, else sampled success of the last steps."""
    threshold: float
    """Sampled success, mean of WINDOW steps."""
    groups: tuple[GroupResult, ...]


def group_runs(runs: Sequence[RunRecord]) -> list[RunGroup]:
    """Groups in the order of their first runs. Raises ConfigError for several environments, or no step in a run."""
    places = {(run.environment, run.config.get("env", {}).get("split", "train")): run for run in runs}
    if len(places) > 1:
        (one, _), (other, _) = list(places)[:2]
        first, second = list(places.values())[:2]
        what = f"{one} and {other}" if one != other else f"two splits of {one}"
        raise ConfigError(f"{first.folder} and {second.folder} train on {what}: compare runs of one environment")
    for run in runs:
        if not run.curve():
            raise ConfigError(f"{run.folder} has no finished training step yet; leave it out, or resume it")
    keyed: dict[str, list[RunRecord]] = {}
    for run in runs:
        keyed.setdefault(json.dumps(options_of(run), sort_keys=True, default=str), []).append(run)
    groups = list(keyed.values())
    options = [options_of(group[0]) for group in groups]
    return [
        RunGroup(name_of(of, [other for other in options if other.get("name") == of.get("name")]), tuple(group))
        for group, of in zip(groups, options, strict=True)
    ]


def name_of(options: dict[str, Any], alike: Sequence[dict[str, Any]]) -> str:
    """The recipe, and the options in which it differs from `alike`, other configurations of the same recipe."""
    differing = [name for name in options if len({json.dumps(of.get(name), default=str) for of in alike}) > 1]
    return " ".join([str(options.get("name", "")), *(f"{name}={options[name]}" for name in differing)])


def options_of(run: RunRecord) -> dict[str, Any]:
    """Options by their dotted names, without the seed and what changes no result."""

    def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        for name, value in tree.items():
            if prefix + name in BOOKKEEPING:
                continue
            if isinstance(value, dict):
                yield from leaves(value, f"{prefix}{name}.")
            else:
                yield prefix + name, value

    return dict(leaves(run.config))


def smooth(run: RunRecord) -> np.ndarray:
    """The curve of sampled success [points, 2]: episodes, and the mean of WINDOW steps until then."""
    episodes, values = np.array(run.curve(MEASURE), float).T
    sums = np.cumsum(np.insert(values, 0, 0.0))
    first = np.maximum(np.arange(len(values)) + 1 - WINDOW, 0)
    after = np.arange(len(values)) + 1
    return np.stack([episodes, (sums[after] - sums[first]) / (after - first)], axis=1)


def final_scores(groups: Sequence[RunGroup]) -> tuple[str, list[np.ndarray]]:
    """(measure, the final scores of each group's runs)."""
    held_out = [[run.held_out() for run in group.runs] for group in groups]
    if all(score is not None for scores in held_out for score in scores):
        return "held-out success", [np.array(scores, float) for scores in held_out]
    return f"success of the last {WINDOW} steps", [
        np.array([smooth(run)[-1, 1] for run in group.runs]) for group in groups
    ]


def compare_groups(groups: Sequence[RunGroup], threshold: float) -> GroupComparison:
    """Every group's final score and episodes to the threshold, and the chance to be better than the first group."""
    measure, finals = final_scores(groups)
    results = []
    for group, final in zip(groups, finals, strict=True):
        curves = [smooth(run) for run in group.runs]
        reached = [first_reaching(curve, threshold, curve[-1, 0]) for curve in curves]
        episodes = np.array([[count] for count, _ in reached])
        better = None
        if results:
            better = probability_of_improvement(final[:, None], finals[0][:, None], replications=REPLICATIONS)
        results.append(
            GroupResult(
                group.name,
                tuple(run.seed for run in group.runs),
                stratified_bootstrap(final[:, None], replications=REPLICATIONS),
                stratified_bootstrap(episodes, replications=REPLICATIONS),
                sum(met for _, met in reached),
                better,
            )
        )
    return GroupComparison(groups[0].runs[0].environment, measure, threshold, tuple(results))
