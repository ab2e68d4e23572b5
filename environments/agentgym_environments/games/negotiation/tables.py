"""Tables of a negotiation: what lies on them, and what it is worth to each player.

The best deal must not be guessable from one's own side. For one's own values, the other's are drawn so that every deal
that could be the best is equally likely to be, and there are at least DEALS of them. So whoever does not read the
other's offers finds it once in DEALS times at most.
"""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import product
from random import Random

import numpy as np

from agentgym_environments.base.text_env import split_of, task_random

THINGS = ("books", "hats", "balls", "pens")
MOST = 3
"""Things of a kind at most."""
TOTAL = 40
"""Points that all things together are worth to each player."""
LEAST = TOTAL // 2
"""Points that a scripted opponent wants at its last move."""
DEALS = 20
"""Deals at least that may be the best, as far as one player knows at first."""
GAP = 4
"""Points at least by which the best deal is better than any that a tough opponent offers by itself."""
DRAWS = 40
"""Opponents that are drawn to one player's values before these are given up."""

Share = tuple[int, ...]


@lru_cache(maxsize=4096)
def draw_table(split: str, task: int, role: int) -> tuple[Share, tuple[Share, Share]]:
    """Counts of things, and the points of one thing of each kind to role 0 and to role 1. `role` is the role to which
    the promises of this module are made."""
    random = task_random("negotiation", split, task, role)
    while True:
        counts = tuple(random.randint(1, MOST) for _ in THINGS)
        own = [worth for worth in _valuations(counts) if min(worth) > 0] if len(shares(counts)) >= 2 * DEALS else []
        if own and (table := _with_opponent(random, split, counts, random.choice(own), role)):
            return table


def _with_opponent(
    random: Random, split: str, counts: Share, own: Share, role: int
) -> tuple[Share, tuple[Share, Share]] | None:
    opponents = _opponents(counts, own)
    for _ in range(DRAWS if len(opponents) >= DEALS else 0):
        other = random.choice(random.choice(opponents))
        worth = (own, other) if role == 0 else (other, own)
        if split_of(f"negotiation {counts} {worth}") == split:
            return counts, worth
    return None


@lru_cache(maxsize=256)
def _opponents(counts: Share, own: Share) -> list[list[Share]]:
    """Values of opponents, one list for each best deal: it is unique, worth LEAST to the opponent exactly, at least as
    much to oneself, and GAP better than all that the opponent ever offers by itself."""
    valuations, kept, to_other = _matrices(counts)
    mine = kept @ np.array(own)
    best = np.where(to_other >= LEAST, mine[:, None], -1).max(axis=0)
    is_best = (to_other >= LEAST) & (mine[:, None] == best)
    # The opponent's last offer: it keeps as few things as make LEAST points, whose number says how many are given.
    few = (TOTAL - to_other >= LEAST) * (sum(counts) - kept.sum(axis=1))[:, None]
    offered = np.where((few == few.max(axis=0)) & (few > 0), TOTAL - mine[:, None], -1).max(axis=0)
    good = (is_best.sum(axis=0) == 1) & (np.where(is_best, to_other, 0).max(axis=0) == LEAST)
    good &= (best >= LEAST) & (best - offered >= GAP)
    opponents: dict[int, list[Share]] = {}
    for column in np.flatnonzero(good):
        opponents.setdefault(int(is_best[:, column].argmax()), []).append(valuations[column])
    return [opponents[deal] for deal in sorted(opponents)]


@cache
def _valuations(counts: Share, total: int = TOTAL) -> list[Share]:
    """Every way to value the things at `total` points together."""
    first, *others = counts
    if not others:
        return [] if total % first else [(total // first,)]
    return [
        (each, *worth)
        for each in range(total // first + 1)
        for worth in _valuations(tuple(others), total - first * each)
    ]


@lru_cache
def _matrices(counts: Share) -> tuple[list[Share], np.ndarray, np.ndarray]:
    """Valuations; shares, int [shares, kinds]; the points of the rest of each share to each valuation, int [shares,
    valuations]."""
    valuations, kept = _valuations(counts), np.array(shares(counts))
    return valuations, kept, ((np.array(counts) - kept) @ np.array(valuations).T).astype(np.int16)


@lru_cache
def shares(counts: Share) -> list[Share]:
    """Every share of the things."""
    return list(product(*(range(count + 1) for count in counts)))
