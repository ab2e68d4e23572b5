"""Segment primitives. `index` names the segment of each row: 0 .. size - 1, as `group_M`, `traj_N` and `turn_A` do.

Going one level down needs no primitive: `x_N[batch.turn_A]` gives every token its turn's number.
"""

from __future__ import annotations

import numpy as np

ROUNDING = 2.0**-22
"""Share of the largest return: a difference below it is what rounding leaves of equal sums of float32 rewards."""


def segment_mean(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Mean of each segment; a segment of equal numbers has exactly that number as its mean."""
    pivot = np.zeros(index.max(initial=-1) + 1)
    pivot[index] = x  # summing differences to a member keeps equal numbers free of rounding
    return pivot + np.bincount(index, x - pivot[index]) / np.maximum(np.bincount(index), 1)


def segment_std(x: np.ndarray, index: np.ndarray, ddof: int) -> np.ndarray:
    """√(Σ(x − mean)² / (n − ddof)) of each segment; 0 where n ≤ ddof."""
    square = (x - segment_mean(x, index)[index]) ** 2
    return np.sqrt(np.bincount(index, square) / np.maximum(np.bincount(index) - ddof, 1))


def standardize(
    x: np.ndarray, index: np.ndarray, *, scale: bool = True, ddof: int = 1, eps: float = 1e-6
) -> np.ndarray:
    """(x − mean) / (std + eps) within each segment, or x − mean without `scale`. Numbers that are equal up to rounding
    give exactly 0, so that no later division makes credit of it."""
    centered = x - segment_mean(x, index)[index]
    spread, largest = np.zeros((2, index.max(initial=-1) + 1))
    np.maximum.at(spread, index, np.abs(centered))
    np.maximum.at(largest, index, np.abs(x))
    centered = np.where((spread <= ROUNDING * largest)[index], 0.0, centered)
    return centered / (segment_std(x, index, ddof)[index] + eps) if scale else centered


def reverse_scan(x: np.ndarray, index: np.ndarray, decay: float) -> np.ndarray:
    """y[i] = x[i] + decay · y[i + 1] within each segment of a sorted `index`: the discounted sum of the rest."""
    y = np.array(x, dtype=np.float64)
    to_end = remaining(index)
    layers = np.split(np.argsort(to_end, kind="stable"), np.cumsum(np.bincount(to_end))[:-1])
    for rows in layers[1:]:  # every segment's last row is done; then all the last but one together, and so on
        y[rows] += decay * y[rows + 1]
    return y


def at_least(x: np.ndarray, edge: float) -> np.ndarray:
    """x ≥ edge, up to rounding: sums of the same rewards in another order count as equal."""
    return x >= edge - 1e-9 * np.abs(x).max(initial=0.0)


def position(index: np.ndarray) -> np.ndarray:
    """0, 1, 2, … within each segment of a sorted `index`."""
    return np.arange(len(index)) - np.searchsorted(index, index)


def remaining(index: np.ndarray) -> np.ndarray:
    """Number of rows after each row in its segment of a sorted `index`: …, 2, 1, 0."""
    return np.searchsorted(index, index, side="right") - 1 - np.arange(len(index))


def joined(*indices: np.ndarray) -> np.ndarray:
    """The index whose segments are the rows that agree in every one of `indices`."""
    return np.unique(np.stack(indices), axis=1, return_inverse=True)[1].reshape(-1)


def named(index: np.ndarray, names: np.ndarray) -> np.ndarray:
    """`joined(index, names)`, but a row whose name is negative has none and is a segment of its own."""
    return joined(index, np.where(names < 0, -1 - np.arange(len(names)), names))


def success_pairs(group_M: np.ndarray, success_M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(trajectories that succeeded, those of their group that did not): every pair."""
    won = success_M > 0.5
    better, worse = np.nonzero((group_M[:, None] == group_M) & won[:, None] & ~won)
    return better, worse


def leave_one_out(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """x − the mean of the others of its segment; 0 where there are no others, and where all are equal."""
    size = np.bincount(index)[index]
    return size / np.maximum(size - 1, 1) * standardize(x, index, scale=False)
