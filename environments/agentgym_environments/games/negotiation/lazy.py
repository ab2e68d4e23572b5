"""Lazy negotiators: they look at their own side, or copy the other's, and draw no conclusion from what it offers."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping

import numpy as np

from agentgym.env import Action, LazyPolicy, Step

Table = tuple[list[int], list[int], list[int]]
"""Counts of things, points of one thing of each kind to oneself, and the share that is offered (empty before)."""
Demand = Callable[[Table, int, np.random.Generator], list[int]]
"""(table, moves left, randomness) -> the share to keep."""


def read_table(step: Step) -> tuple[Table, int]:
    """The table and the moves left, from an observation."""
    text = str(step.observation)
    counts, worth, offered = (
        [int(number) for number in re.findall(r"\d+", found[1])] if (found := re.search(pattern, text)) else []
        for pattern in (r"there are (.*)", r"worth to you (.*)", r"you are offered (.*)")
    )
    left = re.search(r"moves left (\d+)", text)
    return (counts, worth, offered), int(left[1]) if left else 0


def insist(demand: Demand, accept: Callable[[Table, int], bool]) -> LazyPolicy:
    """A policy that says what `demand` returns until `accept(table, moves left)` says to accept."""

    def play(step: Step, rng: np.random.Generator) -> Generator[Action, Step, None]:
        while True:
            table, left = read_table(step)
            take = bool(table[2]) and accept(table, left)
            step = yield "accept" if take else f"keep {' '.join(map(str, demand(table, left, rng)))}"

    return play


def value(table: Table, share: list[int]) -> int:
    return sum(number * each for number, each in zip(share, table[1]))


def at_last(table: Table, left: int) -> bool:
    return left <= 1


def never(table: Table, left: int) -> bool:
    return False


def at_once(table: Table, left: int) -> bool:
    return True


def from_half_on(table: Table, left: int) -> bool:
    return left <= 1 or 2 * value(table, table[2]) >= value(table, table[0])


def everything(table: Table, left: int, rng: np.random.Generator) -> list[int]:
    return table[0]


def half_of_each(table: Table, left: int, rng: np.random.Generator) -> list[int]:
    return [(count + 1) // 2 for count in table[0]]


def worth_more_than(least: int) -> Demand:
    return lambda table, left, rng: [n if each > least else 0 for n, each in zip(table[0], table[1])]


def dearest_up_to(share: float) -> Demand:
    """Keep the dearest things, one after the other, until they are worth that share of all."""

    def demand(table: Table, left: int, rng: np.random.Generator) -> list[int]:
        kept = [0] * len(table[0])
        for kind in _by_worth(table, dear_first=True):
            while kept[kind] < table[0][kind] and value(table, kept) < share * value(table, table[0]):
                kept[kind] += 1
        return kept

    return demand


def all_but(things: Callable[[int], int]) -> Demand:
    """Give away that many of the cheapest things, by the moves left."""

    def demand(table: Table, left: int, rng: np.random.Generator) -> list[int]:
        kept = list(table[0])
        for _ in range(things(left)):
            kind = next((one for one in _by_worth(table, dear_first=False) if kept[one]), 0)
            kept[kind] = max(0, kept[kind] - 1)
        return kept

    return demand


def all_but_kinds(kinds: int) -> Demand:
    """Give away the cheapest kinds."""

    def demand(table: Table, left: int, rng: np.random.Generator) -> list[int]:
        cheap = _by_worth(table, dear_first=False)[:kinds]
        return [0 if kind in cheap else count for kind, count in enumerate(table[0])]

    return demand


def what_is_offered_and(more: int) -> Demand:
    """Keep what is offered and that many of the dearest things beside it."""

    def demand(table: Table, left: int, rng: np.random.Generator) -> list[int]:
        kept = list(table[2] or table[0])
        for _ in range(more):
            kind = next((one for one in _by_worth(table, dear_first=True) if kept[one] < table[0][one]), 0)
            kept[kind] = min(table[0][kind], kept[kind] + 1)
        return kept

    return demand


def two_worthiest_kinds(table: Table, left: int, rng: np.random.Generator) -> list[int]:
    counts, worth, _ = table
    best = sorted(range(len(counts)), key=lambda kind: counts[kind] * worth[kind], reverse=True)[:2]
    return [count if kind in best else 0 for kind, count in enumerate(counts)]


def half_way(table: Table, left: int, rng: np.random.Generator) -> list[int]:
    """Split the difference between everything and what is offered."""
    return [(count + given + 1) // 2 for count, given in zip(table[0], table[2] or table[0])]


def what_the_other_keeps(table: Table, left: int, rng: np.random.Generator) -> list[int]:
    return [count - given for count, given in zip(table[0], table[2] or [0] * len(table[0]))]


def any_share(table: Table, left: int, rng: np.random.Generator) -> list[int]:
    return [int(rng.integers(count + 1)) for count in table[0]]


def _by_worth(table: Table, *, dear_first: bool) -> list[int]:
    return sorted(range(len(table[0])), key=lambda kind: table[1][kind], reverse=dear_first)


LAZY_POLICIES: Mapping[str, LazyPolicy] = {
    "accept the first offer": insist(half_of_each, at_once),
    "keep all, accept at last": insist(everything, at_last),
    "keep all that is worth more than 0, accept at last": insist(worth_more_than(0), at_last),
    "keep all that is worth more than 2, never accept": insist(worth_more_than(2), never),
    "keep all that is worth more than 3, never accept": insist(worth_more_than(3), never),
    "keep all that is worth more than 4, never accept": insist(worth_more_than(4), never),
    "keep the dearest half of the points, never accept": insist(dearest_up_to(0.5), never),
    "keep the dearest 55 % of the points, never accept": insist(dearest_up_to(0.55), never),
    "keep the dearest 60 % of the points, never accept": insist(dearest_up_to(0.6), never),
    "keep the dearest 70 % of the points, never accept": insist(dearest_up_to(0.7), never),
    "keep the two kinds that are worth most, never accept": insist(two_worthiest_kinds, never),
    "keep half of each, accept at last": insist(half_of_each, at_last),
    "keep the dearest 65 % of the points, accept at last": insist(dearest_up_to(0.65), at_last),
    "keep all but the cheapest kind, accept at last": insist(all_but_kinds(1), at_last),
    "keep all but the two cheapest kinds, never accept": insist(all_but_kinds(2), never),
    "give one cheap thing more each turn, never accept": insist(all_but(lambda left: 6 - left), never),
    "give two cheap things more each turn, never accept": insist(all_but(lambda left: 10 - 2 * left), never),
    "keep all, accept from half on": insist(everything, from_half_on),
    "keep what is offered and the dearest thing beside, accept at last": insist(what_is_offered_and(1), at_last),
    "keep what is offered and the two dearest things beside, never accept": insist(what_is_offered_and(2), never),
    "split the difference, accept at last": insist(half_way, at_last),
    "keep what the other kept, accept at last": insist(what_the_other_keeps, at_last),
    "say any share, accept at last": insist(any_share, at_last),
}
