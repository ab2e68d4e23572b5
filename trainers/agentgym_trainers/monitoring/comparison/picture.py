"""Learning curves of groups of runs with their intervals, and the profile of their final scores."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from textwrap import fill

import numpy as np

from agentgym.evaluation.stats import performance_profile, stratified_bootstrap
from agentgym_trainers.monitoring.comparison.groups import WINDOW, RunGroup, final_scores, smooth

COLORS = ("#2266bb", "#cc5533", "#117755", "#8844aa", "#b58900", "#c03070", "#445500", "#00a0a0")
POINTS, REPLICATIONS = 60, 2000
LABEL = 150
"""Characters in a line of the legend."""


def draw_groups(groups: Sequence[RunGroup], path: Path) -> None:
    """Write the picture. Curves: interquartile mean of sampled success with its 95 % bootstrap interval, as far as all
    runs of a group have played. Profile: share of runs whose final score is above a score."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    measure, finals = final_scores(groups)
    scores = np.linspace(0, 1, 201)
    for color, group, final in zip(cycle(COLORS), groups, finals):
        curves = [smooth(run) for run in group.runs]
        grid = np.linspace(max(curve[0, 0] for curve in curves), min(curve[-1, 0] for curve in curves), POINTS)
        table = np.array([np.interp(grid, *curve.T) for curve in curves])  # runs × grid
        label = fill(f"{group.name} ({len(curves)} runs)", LABEL)
        found = [stratified_bootstrap(column[:, None], replications=REPLICATIONS) for column in table.T]
        left.plot(grid, [100 * one.estimate for one in found], color=color, label=label)
        low, high = [100 * one.low for one in found], [100 * one.high for one in found]
        left.fill_between(grid, low, high, color=color, alpha=0.15, linewidth=0)
        right.step(100 * scores, 100 * performance_profile(final[:, None], scores), color=color, where="post")
    left.set(xlabel="episodes", ylabel=f"sampled success, mean of {WINDOW} steps, %", ylim=(0, 102))
    right.set(xlabel=f"{measure}, %", ylabel="runs above it, %", ylim=(-2, 102))
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(groups[0].runs[0].environment, fontsize=11)
    figure.legend(frameon=False, loc="outside lower center", fontsize=8)
    figure.savefig(path, dpi=110)
