"""Report of the bench: a table, and a JSON file that holds every number of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from agentgym.rollouts.trajectory import json_line
from agentgym_trainers.credit_bench.pair_scores import PairScores
from agentgym_trainers.credit_bench.run import Result
from agentgym_trainers.credit_bench.scores import Figure

TURNS = {
    "pearson": "correlation",
    "spearman": "of ranks",
    "kendall": "τ",
    "sign": "sign right",
    "blame": "blame on nothing",
}
GRADIENT = {"cosine": "cosine", "bias": "bias", "noise": "noise", "scale": "scale"}
"""Figures as the tables head them."""


def summary(result: Result) -> str:
    """A few sentences about what was measured."""
    trajectories, branched = result.trajectories, result.branched
    won, turns = np.mean([t.success for t in trajectories]), len(result.truth.advantage_N)
    known = result.truth.known_N
    lost = f" {branched.lost} were lost to failures." if branched.lost else ""
    chance = "each step taken again, for the environment has chance; " if branched.chance else ""
    return (
        f"{result.env}: {len(trajectories)} episodes of {result.options.groups} tasks, {won:.0%} won, {turns} "
        "turns. "
        f"True advantages from {branched.played:,} continuations ({chance}{branched.turns:,} turns played), standard "
        f"error {np.mean(result.truth.error_N[known]):.3f} on average; {result.reliability:.0%} of their variance is "
        f"signal, {result.irrelevant:.0%} of turns are within noise of 0.{lost}"
    )


def tables(result: Result) -> list[Table]:
    """Assigners, the best first, with 95 % intervals over tasks: their credit of turns, and its gradient."""
    setting = f"{result.env}, against {result.options.continuations} continuations of every state"
    made = [_table(f"Credit of turns: {setting}", TURNS, result)]
    if all(name in scored.figures for scored in result.scored for name in GRADIENT):
        made.append(_table("Its gradient, against that of the true advantages", GRADIENT, result))
    return made


def _table(title: str, shown: dict[str, str], result: Result) -> Table:
    table = Table(title=title)
    table.add_column("assigner", no_wrap=True)
    for heading in shown.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for scored in result.scored:
        table.add_row(scored.contestant.name, *(cell(name, scored.figures[name]) for name in shown))
    return table


def cell(name: str, figure: Figure) -> str:
    """A figure with its interval; of ranks the figure alone, so that a table is 120 characters wide."""
    if math.isnan(figure.value):
        return "–"
    if name in ("spearman", "kendall"):
        return _short(figure.value)
    numbers = [
        "–" if math.isnan(x) else f"{x:.0%}" if name == "blame" else _short(x)
        for x in (figure.value, figure.low, figure.high)
    ]
    return f"{numbers[0]} [dim]\\[{numbers[1]}, {numbers[2]}][/dim]"


def _short(value: float) -> str:
    """.84, −.05, 1.00, 12, 340, ∞"""
    if math.isinf(value):
        return "∞"
    if abs(value) >= 9.995:
        return f"{value:.0f}" if abs(value) < 1e5 else f"{value:.0e}"
    return f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.2f}"


def write_json(result: Result, path: Path) -> None:
    """Every number of the table, and every turn with its truth and its credit."""
    path.write_text(json.dumps(json.loads(json_line(to_json(result))), indent=1), encoding="utf-8")


def to_json(result: Result) -> dict[str, Any]:
    return {
        "env": result.env,
        "policy": result.policy,
        "options": asdict(result.options),
        "episodes": len(result.trajectories),
        "success": float(np.mean([t.success for t in result.trajectories])),
        "continuations": result.branched.played,
        "continued_turns": result.branched.turns,
        "lost": result.branched.lost,
        "chance": result.branched.chance,
        "irrelevant": result.irrelevant,
        "reliability": _number(result.reliability),
        "seconds": {name: round(seconds, 1) for name, seconds in result.seconds.items()},
        "processor_seconds": {name: round(seconds, 1) for name, seconds in result.processor.items()},
        "assigners": [
            {
                "name": scored.contestant.name,
                "assigner": scored.contestant.assigner,
                "options": scored.contestant.credit_options.model_dump(exclude_defaults=True),
                "signals": {kind: options.model_dump() for kind, options in scored.contestant.signals.items()},
                "shaping": {name: dict(options) for name, options in scored.contestant.shaping.items()},
                "measured": scored.contestant.measured,
                "figures": {name: [_number(x) for x in (f.value, f.low, f.high)] for name, f in scored.figures.items()},
            }
            for scored in result.scored
        ],
        "not_measured": result.refused,
        "signals": {
            kind: {name: _number(x) for name, x in metrics.items()} for kind, metrics in result.signals.items()
        },
        "trajectories": [_trajectory(result, m) for m in range(len(result.trajectories))],
    }


def _trajectory(result: Result, m: int) -> dict[str, Any]:
    of_m, trajectory = np.flatnonzero(result.traj_N == m), result.trajectories[m]
    return {
        "task": trajectory.task,
        "attempt": trajectory.attempt,
        "success": trajectory.success,
        "actions": [turn.action if turn.action is not None else turn.reply for turn in trajectory.turns],
        "value": [_number(x) for x in result.branched.value_N[of_m]],
        "advantage": [_number(x) for x in result.truth.advantage_N[of_m]],
        "standard_error": [_number(x) for x in result.truth.error_N[of_m]],
        "credit": {scored.contestant.name: [_number(x) for x in scored.credit_N[of_m]] for scored in result.scored},
    }


def pair_table(rows: Sequence[PairScores], what: str) -> Table:
    """Rows of scores of candidate actions, the best first."""
    table = Table(title=f"Order of candidate actions: {what}")
    table.add_column("scorer", no_wrap=True)
    for heading in ("ρ", "τ", "best action", "ρ, all pairs", "states", "unread"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        figures = (cell("", figure) for figure in (row.spearman, row.kendall, row.best))
        pooled = "–" if math.isnan(row.pooled) else _short(row.pooled)
        table.add_row(row.name, *figures, pooled, str(row.states), str(row.unread))
    return table


def write_pair_scores(rows: Sequence[PairScores], metrics: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Write every number of the table, and the counts of the judge's answers."""
    content = {"rows": [asdict(row) for row in rows], "judge": metrics}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(json.loads(json_line(content)), indent=1), encoding="utf-8")


def _number(value: Any) -> float | None:
    return round(float(value), 5) if math.isfinite(value) else None
