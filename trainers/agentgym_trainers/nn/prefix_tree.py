"""Sequences that begin alike, as a tree: what they share is written, and computed, once.

    a b c d e      ->   a b c d e  f g  h          chunks   [0:5] after nothing
    a b c f g           0 1 2 3 4  5 6  7                   [5:7] after [0:3]
    a b c f h                                               [7:8] after [0:3] [5:6]

A group's attempts share their prompt, forks of an episode what came before, and a turn's row is the beginning of the
next turn's. The tokens of the tree stand in depth-first order, so a token is seen by those that come after it until its
branch ends: `until_T`.

Shapes: T tokens of the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens side by side, each seen by those after it."""

    start: int
    stop: int
    before: tuple[tuple[int, int], ...]
    """(start, stop) of the tokens that come before them in their sequence, in order."""


@dataclass(frozen=True, slots=True)
class PrefixTree:
    keys_T: np.ndarray
    """int64[T]: token ids, and at images what they show."""
    position_T: np.ndarray
    """int64[T]: of each token in its sequence."""
    until_T: np.ndarray
    """int64[T]: token q sees token k where k <= q < until[k]."""
    chunks: list[Chunk]
    places: list[np.ndarray]
    """Positions of the tokens of each given sequence."""


def tree_of(sequences: Sequence[np.ndarray]) -> PrefixTree:
    """The tree of sequences of token ids, int64; none is empty. Where there are images, the sequences are their
    `content_keys`: the placeholder tokens of two images are equal, and what a model reads there is not."""
    places: list[np.ndarray] = [np.zeros(0, np.int64)] * len(sequences)
    new: list[np.ndarray] = []
    chunks: list[Chunk] = []
    until_T = np.empty(sum(map(len, sequences)), np.int64)
    last, path, size = np.zeros(0, np.int64), np.zeros(0, np.int64), 0
    for i in in_order(sequences):
        ids = sequences[i]
        shared = common(last, ids)
        if shared < len(ids):
            until_T[path[shared:]] = size
            fresh = np.arange(size, size + len(ids) - shared)
            if shared == len(path) and chunks:  # goes on where the last one ended
                chunks[-1] = Chunk(chunks[-1].start, size + len(fresh), chunks[-1].before)
            else:
                chunks.append(Chunk(size, size + len(fresh), _runs(path[:shared])))
            new.append(ids[shared:])
            last, path, size = ids, np.concatenate([path[:shared], fresh]), size + len(fresh)
        places[i] = path[: len(ids)]
    until_T[path] = size
    position_T = np.concatenate([np.arange(c.stop - c.start) + sum(b - a for a, b in c.before) for c in chunks])
    return PrefixTree(np.concatenate(new), position_T, until_T[:size], chunks, places)


def in_order(sequences: Sequence[np.ndarray]) -> list[int]:
    """Those that begin alike next to each other, what begins another before it."""
    return sorted(range(len(sequences)), key=lambda i: sequences[i].astype(">i8").tobytes())


def common(a: np.ndarray, b: np.ndarray) -> int:
    """Number of tokens that two sequences share at their beginning."""
    short = min(len(a), len(b))
    differ = np.flatnonzero(a[:short] != b[:short])
    return int(differ[0]) if len(differ) else short


def _runs(places: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Increasing numbers as runs of neighbours."""
    if not len(places):
        return ()
    return tuple((int(run[0]), int(run[-1]) + 1) for run in _split(places))


def _split(places: np.ndarray) -> Iterator[np.ndarray]:
    yield from np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
