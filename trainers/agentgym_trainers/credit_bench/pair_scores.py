"""Scores of candidate actions against their exact values: how well a signal orders the actions of a state.

A scorer is a function, state -> one number for each of its actions, the higher the better. NaN scores say nothing
about a state, which is then left out and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agentgym.errors import ConfigError
from agentgym.evaluation.action_values import ActionValues
from agentgym_trainers.config.registry import FunctionPart, Registry
from agentgym_trainers.credit_bench.policy_scores import ROW as LOG_PROBABILITY
from agentgym_trainers.credit_bench.policy_scores import policy_scores
from agentgym_trainers.credit_bench.prompted import RANK_ACTIONS, ROWS, VALUE, ActionCase, PromptedJudge
from agentgym_trainers.credit_bench.scores import Figure, figure, kendall, ranks, resamples
from agentgym_trainers.signals.judge import quoted

DRAWS = 1000
TIED = 9
"""Decimal places to which values are compared."""


@dataclass(frozen=True)
class Scorer(FunctionPart):
    """function: (state) -> one number for each action."""


def reference_probability(state: ActionValues) -> Sequence[float]:
    """Probability of each action under the reference policy itself."""
    return state.probabilities or [np.nan] * len(state.actions)


SCORERS = Registry("scorer", Scorer, {"reference": Scorer(reference_probability)})
"""Scorers by name; one of your own is "package.module:function"."""


@dataclass(frozen=True)
class PairScores:
    """A row of the table. Figures within states are means over the states whose actions differ in value."""

    name: str
    spearman: Figure
    """Rank correlation of scores and values within a state."""
    kendall: Figure
    """Kendall's tau-b within a state; a state in which all scores are equal has 0, in both figures."""
    best: Figure
    """Share of states whose best-scored action is a best one; scores that tie count for the share that is right."""
    pooled: float
    """Rank correlation over all pairs of all states; NaN for a row that only orders the actions of a state."""
    states: int
    """States that entered."""
    unread: int
    """States left out because the row has no score there."""


def own_scores(name: str, states: Sequence[ActionValues]) -> list[np.ndarray]:
    """Return a scorer's numbers for every state. Raises ConfigError for a scorer whose numbers do not fit."""
    try:
        scorer = SCORERS[name]
    except ValueError as error:
        raise ConfigError(str(error)) from error
    found = []
    for state in states:
        scores = np.asarray(scorer.function(state), np.float64)
        if scores.shape != (len(state.actions),):
            raise ConfigError(
                f"{name} gives {scores.size} numbers for {len(state.actions)} actions: return one for each action"
            )
        found.append(scores)
    return found


async def judged_scores(
    judge: PromptedJudge, row: str, states: Sequence[ActionValues], rng: np.random.Generator
) -> list[np.ndarray]:
    """Return a judge's numbers for every state, NaN where an answer could not be read.

    Candidates to be ordered are shuffled, so that a judge that repeats the order it is shown is at chance.
    """
    pasts = [tuple((turn.observation, turn.action) for turn in state.history) for state in states]
    tasks = {state.task for state in states}
    found: list[np.ndarray] = [np.full(len(state.actions), np.nan) for state in states]
    metrics: dict[str, float] = {}
    for task in sorted(tasks):
        chosen = [number for number, state in enumerate(states) if state.task == task]
        if row == ROWS[0]:
            cases = [ActionCase(pasts[n], states[n].state, action) for n in chosen for action in states[n].actions]
            numbers = iter(await judge.scores(cases, task, VALUE))
            for n in chosen:
                found[n] = np.array([next(numbers) for _ in states[n].actions], np.float64)  # None becomes NaN
        else:
            shuffled = {n: rng.permutation(len(states[n].actions)) for n in chosen}
            questions = [
                (_head(pasts[n], states[n]), [quoted(states[n].actions[i]) for i in shuffled[n]]) for n in chosen
            ]
            orders = await judge.orders(questions, task, RANK_ACTIONS)
            for n, order in zip(chosen, orders, strict=True):
                if order is not None:
                    found[n][shuffled[n]] = order
        metrics = {name: metrics.get(name, 0.0) + count for name, count in judge.metrics.items()}
    judge.metrics = metrics
    return found


def _head(past: Sequence[tuple[str, str]], state: ActionValues) -> str:
    lines = [
        line
        for observation, action in past
        for line in (f"Observed: {quoted(observation)}", f"Action: {quoted(action)}")
    ]
    return "\n".join([*lines, f"Observed: {quoted(state.state)}", "Candidate actions:"])


def compare(name: str, states: Sequence[ActionValues], scores: Sequence[np.ndarray], *, seed: int = 0) -> PairScores:
    """Figures of one row, with 95 % bootstrap intervals over groups of states.

    Raises ConfigError where no state has actions of different value, for then there is nothing to order.
    """
    values = [np.round(np.array(state.q), TIED) for state in states]
    differing = [number for number, q in enumerate(values) if q.min() < q.max()]
    if not differing:
        raise ConfigError("all actions of every state are worth the same: write states whose actions differ in value")
    read = [number for number in differing if not np.isnan(scores[number]).any()]
    rows = [within(np.round(scores[number], TIED), values[number]) for number in read]
    columns = np.array(rows).T if read else np.empty((3, 0))
    units = np.unique([states[number].group or f"#{number}" for number in read], return_inverse=True)[1]
    count = int(units.max(initial=0)) + 1
    weights_BU = resamples(count, DRAWS, np.random.default_rng([seed, 29]))
    sizes = weights_BU @ np.bincount(units, minlength=count)
    rho, tau, best = (
        figure(weights_BU @ np.bincount(units, column, count) / sizes) if read else Figure(np.nan, np.nan, np.nan)
        for column in columns
    )
    pooled = np.nan
    if read and name != ROWS[1]:
        every = [number for number in range(len(states)) if not np.isnan(scores[number]).any()]
        pooled = spearman(*(np.concatenate([side[number] for number in every]) for side in (scores, values)))
    return PairScores(name, rho, tau, best, pooled, len(read), len(differing) - len(read))


def within(score: np.ndarray, q: np.ndarray) -> tuple[float, float, float]:
    """(Spearman's rho, Kendall's tau-b, whether the best-scored action is a best one) of one state."""
    one, unit = np.ones((1, 1)), np.zeros(len(q), int)
    best = score == score.max()
    return spearman(score, q), float(kendall(score, q, unit, one)[0]), float((q[best] == q.max()).mean())


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's rank correlation; 0 where either side is constant."""
    a, b = (ranks(column) - ranks(column).mean() for column in (x, y))
    size = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / size if size > 0 else 0.0


def uniform_scores(states: Sequence[ActionValues], rng: np.random.Generator) -> list[np.ndarray]:
    """Random numbers: what a row of no skill looks like."""
    return [rng.random(len(state.actions)) for state in states]


async def score_pairs(
    states: Sequence[ActionValues],
    scorers: Sequence[str] = (),
    judge: Callable[[], PromptedJudge] | None = None,
    *,
    policy: Path | None = None,
    seed: int = 0,
) -> tuple[list[PairScores], dict[str, dict[str, float]]]:
    """(rows, the best first; counts of the judge's answers by row) of a file of pairs."""
    rows = [compare("random", states, uniform_scores(states, np.random.default_rng([seed, 31])), seed=seed)]
    rows += [compare(name, states, own_scores(name, states), seed=seed) for name in scorers]
    if policy is not None:
        rows.append(compare(LOG_PROBABILITY, states, policy_scores(policy, states), seed=seed))
    metrics: dict[str, dict[str, float]] = {}
    if judge is not None:
        for row in ROWS:
            asker = judge()
            scores = await judged_scores(asker, row, states, np.random.default_rng([seed, 37]))
            rows.append(compare(row, states, scores, seed=seed))
            metrics[row] = asker.metrics
    return sorted(rows, key=lambda row: -np.nan_to_num(row.kendall.value, nan=-2.0)), metrics
