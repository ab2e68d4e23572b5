"""The heat map: turns of a few attempts across, assigners down, the true advantages on top."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from agentgym_trainers.credit_bench.run import Result

LEGEND = (
    "Blue praises a turn, red blames it; every row is scaled to one spread, so only patterns compare. r: correlation "
    "with the true advantages, over all turns of all attempts."
)
INK, SOFT = "#1f2328", "#6e7781"
MOST_TURNS = 24
"""Turns of an episode in the picture, at most."""
ROW, CELLS = 0.245, (0.37, 0.62)
LEFT, RIGHT, TOP, BOTTOM, GAP = 2.55, 0.95, 1.22, 0.9, 0.28
"""Inches: height of a row, the least and the most width of a turn, margins, space between attempts."""


def draw(result: Result, path: Path) -> None:
    """Write the picture. Each row is scaled to the spread of the true advantages over all turns, so that only the
    pattern is compared; its colours end at the largest true advantage that is shown."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    panels = {m: np.flatnonzero(result.traj_N == m)[:MOST_TURNS] for m in chosen(result)}
    credit = np.stack([scaled(s.credit_N, result) for s in result.scored])
    truth_N = result.truth.advantage_N
    most = max(float(np.nanmax(np.abs(truth_N[np.concatenate(list(panels.values()))]))), 1e-9)
    turns = sum(map(len, panels.values()))
    cell = float(np.clip(8.0 / turns, *CELLS))
    width = LEFT + cell * turns + GAP * (len(panels) - 1) + RIGHT
    height = TOP + ROW * (len(credit) + 1.5) + BOTTOM
    with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": 8.5, "text.color": INK}):
        canvas = Canvas(figsize=(width, height), dpi=160, facecolor="white")
        axes = _Inches(canvas, width, height)
        x, low = LEFT, BOTTOM + ROW * (len(credit) + 0.5)
        for m, of_m in panels.items():
            above = axes.box(x, low, cell * len(of_m), ROW)
            _cells(above, truth_N[None, of_m], most)
            _numbers(above, truth_N[of_m], most)
            below = axes.box(x, BOTTOM, cell * len(of_m), ROW * len(credit))
            image = _cells(below, credit[:, of_m], most)
            _actions(below, result, m, len(of_m))
            axes.text(x, low + ROW + 0.09, _title(result, m), fontsize=9)
            x += cell * len(of_m) + GAP
        _names(axes, result, low)
        bar = canvas.colorbar(image, cax=axes.box(x + 0.02, BOTTOM, 0.13, ROW * len(credit)), extend="both")
        bar.outline.set_visible(False)  # type: ignore[operator]
        bar.ax.tick_params(length=0, labelsize=8, labelcolor=SOFT, pad=3)
        axes.text(0.25, height - 0.2, f"Which turn gets the credit: {result.env}", fontsize=12.5, va="top")
        legend = "\n".join(textwrap.wrap(LEGEND, int(14 * (width - 0.5))))
        axes.text(0.25, height - 0.49, legend, fontsize=8.5, color=SOFT, va="top", linespacing=1.35)
        canvas.savefig(path)


class _Inches:
    """Places things on a canvas by inches from its lower left corner."""

    def __init__(self, canvas: Any, width: float, height: float) -> None:
        self.canvas, self.width, self.height = canvas, width, height

    def box(self, x: float, y: float, width: float, height: float) -> Any:
        return self.canvas.add_axes((x / self.width, y / self.height, width / self.width, height / self.height))

    def text(self, x: float, y: float, content: str, **style: Any) -> None:
        self.canvas.text(x / self.width, y / self.height, content, **style)


def chosen(result: Result) -> list[int]:
    """Two attempts at one task, one won and one lost, whose turns mattered most; or else the two that matter most."""
    square_N = np.nan_to_num(result.truth.advantage_N) ** 2
    spread = np.bincount(result.traj_N, square_N).tolist()
    order = np.argsort(spread)[::-1].tolist()
    group_of = {m: int(result.group_N[result.traj_N == m][0]) for m in order}
    pairs = [
        (spread[a] + spread[b], a, b)
        for a in order
        for b in order
        if result.trajectories[a].success and not result.trajectories[b].success and group_of[a] == group_of[b]
    ]
    return list(max(pairs)[1:]) if pairs else order[:2]


def scaled(credit_N: np.ndarray, result: Result) -> np.ndarray:
    """The credit with the root mean square of the true advantages."""
    known = result.truth.known_N
    size = float(np.sqrt((credit_N[known] ** 2).mean()))
    wanted = float(np.sqrt((result.truth.advantage_N[known] ** 2).mean()))
    return credit_N * (wanted / size if size > 0 else 1.0)


def _cells(axes: Any, values: np.ndarray, most: float) -> Any:
    image = axes.imshow(values, cmap="RdBu", vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
    axes.set_xticks(np.arange(values.shape[1] + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(values.shape[0] + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.3)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.tick_params(which="both", length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return image


def _names(axes: _Inches, result: Result, low: float) -> None:
    """Write the rows' names and correlations beside them."""
    axes.text(LEFT - 0.62, low + ROW / 2, "true advantage", ha="right", va="center", fontweight="bold")
    axes.text(LEFT - 0.12, low + ROW / 2, "r", ha="right", va="center", color=SOFT)
    for row, scored in enumerate(result.scored):
        y, value = low - ROW * (row + 1), scored.figures["pearson"].value
        axes.text(LEFT - 0.62, y, scored.contestant.name, ha="right", va="center")
        label = f"{value:+.2f}".replace("0.", ".", 1).replace("-", "−") if np.isfinite(value) else "–"
        axes.text(LEFT - 0.12, y, label, ha="right", va="center", color=SOFT)


def _actions(axes: Any, result: Result, m: int, count: int) -> None:
    turns = result.trajectories[m].turns[:count]
    actions = [str(turn.action) if turn.action is not None else f"({turn.reply.strip()})" for turn in turns]
    clean = ["".join(c if c.isprintable() and ord(c) < 0x250 else "·" for c in text) for text in actions]  # in the font
    labels = [text if len(text) <= 13 else f"{text[:12]}…" for text in clean]
    axes.set_xticks(range(count), labels, rotation=50, ha="right", rotation_mode="anchor", fontsize=8, color=INK)
    axes.tick_params(which="major", length=0, pad=3)


def _numbers(axes: Any, values: np.ndarray, most: float) -> None:
    """The true advantages in figures, where they are not near 0."""
    for column, value in enumerate(values):
        if np.isfinite(value) and abs(value) >= 0.095:
            label = f"{value:+.1f}".replace("0.", ".").replace("-", "−")
            axes.text(column, 0, label, ha="center", va="center", fontsize=6.8,
                      color="white" if abs(value) > 0.6 * most else INK)  # fmt: skip


def _title(result: Result, m: int) -> str:
    trajectory = result.trajectories[m]
    return f"an attempt that {'won' if trajectory.success else 'lost'} (task {trajectory.task})"
