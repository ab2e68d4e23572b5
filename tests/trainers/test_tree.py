"""Sequences as a tree: each is found in it whole, what begins alike is there once, and tokens see what came before."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentgym_trainers.data.sequences import Row
from agentgym_trainers.nn.forward import micro_batches
from agentgym_trainers.nn.prefix_tree import Chunk, common, tree_of

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=8)


def arrays(sequences: list[list[int]]) -> list[np.ndarray]:
    return [np.array(ids, np.int64) for ids in sequences]


def beginnings(sequences: list[list[int]]) -> set[tuple[int, ...]]:
    """Every beginning of a sequence: a token of the tree each."""
    return {tuple(ids[: i + 1]) for ids in sequences for i in range(len(ids))}


def test_the_example_of_the_docstring() -> None:
    tree = tree_of(arrays([[0, 1, 2, 3, 4], [0, 1, 2, 5, 6], [0, 1, 2, 5, 7]]))
    assert tree.keys_T.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert tree.chunks == [Chunk(0, 5, ()), Chunk(5, 7, ((0, 3),)), Chunk(7, 8, ((0, 3), (5, 6)))]
    assert tree.position_T.tolist() == [0, 1, 2, 3, 4, 3, 4, 4]
    assert tree.until_T.tolist() == [8, 8, 8, 5, 5, 8, 7, 8]


def test_a_row_a_turn_costs_no_more_than_the_episode() -> None:
    """Each turn's row begins the next one's: one chunk, however many rows."""
    episode = np.arange(20)
    tree = tree_of([episode[:stop] for stop in (20, 5, 13)])
    assert tree.chunks == [Chunk(0, 20, ())]
    assert [len(place) for place in tree.places] == [20, 5, 13]


@given(SEQUENCES)
def test_every_sequence_is_there_and_nothing_twice(sequences: list[list[int]]) -> None:
    tree = tree_of(arrays(sequences))
    for ids, place in zip(sequences, tree.places, strict=True):
        assert tree.keys_T[place].tolist() == ids
        assert tree.position_T[place].tolist() == list(range(len(ids)))
    assert len(tree.keys_T) == len(beginnings(sequences))


@given(SEQUENCES)
def test_a_token_sees_its_own_past_and_nothing_else(sequences: list[list[int]]) -> None:
    """By both of the ways in which attention is told so."""
    tree = tree_of(arrays(sequences))
    size = len(tree.keys_T)
    truth = np.zeros((size, size), bool)
    for place in tree.places:
        for i, q in enumerate(place.tolist()):
            truth[q, place[: i + 1]] = True
    k, q = np.meshgrid(np.arange(size), np.arange(size))
    assert np.array_equal((k <= q) & (q < tree.until_T[k]), truth)
    chunked = np.zeros((size, size), bool)
    for chunk in tree.chunks:
        for q_of in range(chunk.start, chunk.stop):
            chunked[q_of, chunk.start : q_of + 1] = True
            for start, stop in chunk.before:
                chunked[q_of, start:stop] = True
    assert np.array_equal(chunked, truth)


@given(SEQUENCES, st.integers(1, 30))
def test_micro_batches_hold_every_row_once_within_budget(sequences: list[list[int]], budget: int) -> None:
    """A part may exceed it only by a single row's own length."""
    none = np.zeros(0, np.int64)
    rows = [Row(ids, none, none, i, False) for i, ids in enumerate(arrays(sequences))]
    parts = list(micro_batches(rows, budget))
    assert sorted(row.trajectory for part in parts for row in part) == list(range(len(rows)))
    for part in parts:
        assert len(part) == 1 or len(tree_of([row.ids for row in part]).keys_T) <= budget


def test_common() -> None:
    assert [common(np.array(a), np.array(b)) for a, b in (([1, 2], [1, 2, 3]), ([1, 2], [1, 3]), ([], [1]))] == [
        2,
        1,
        0,
    ]
