"""Questions of an environment: drawn from (hops, split), the same on every machine for the same data packages.

A country belongs to one split with all that lies in it, and a chain stays in its split, so that no fact learnt from
training answers a question of another split.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator

from agentgym.errors import ConfigError
from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.synthetic.search.atlas import Atlas, AtlasCity, Entity
from agentgym_environments.synthetic.search.chains import VALUES, Chain, Chains, Relation
from agentgym_environments.synthetic.search.library import library

HOPS = (1, 2, 3)

LONGEST_WAY = 4
"""Steps from thing to thing in one chain."""

COMMON = 0.02
"""Share of a split's questions that may have one and the same answer: nobody does better than this by guessing it."""

DRAWS = 400
"""Draws for each question wanted before the atlas counts as too small."""

_drawn: dict[tuple[int, int, str, int], tuple[Chain, ...]] = {}
_chains: dict[int, Chains] = {}
_drawing = threading.Lock()


def questions(smallest: int, hops: int, split: str, count: int) -> tuple[Chain, ...]:
    """`count` different questions of `hops` hops. Kept for the process once drawn.

    Raises ConfigError when there are not so many, or for a number of hops that is none of HOPS.
    """
    if hops not in HOPS:
        raise ConfigError(f"hops is one of {', '.join(map(str, HOPS))}, not {hops!r}")
    books = library(smallest)
    key = (smallest, hops, split, count)
    with _drawing:
        if smallest not in _chains:
            _chains[smallest] = Chains(books.atlas, books.documents)
        if key not in _drawn:
            _drawn[key] = tuple(_draw(_chains[smallest], hops, split, count))
        return _drawn[key]


def _draw(chains: Chains, hops: int, split: str, count: int) -> Iterator[Chain]:
    chance = task_random("search", hops, split)
    starts = _starts(chains.atlas, split)
    countries = sorted(starts)
    drawn: set[str] = set()
    answers: Counter[str] = Counter()
    for _ in range(DRAWS * count):
        kinds = starts[chance.choice(countries)]
        start = chance.choice(kinds[chance.choice(sorted(kinds))])
        chain = _chain(chains, start, hops, chance)
        if chain is None or chain.question in drawn or any(_split(code) != split for code in chain.countries):
            continue
        answer = chain.answers[0]
        if answers[answer] + 1 > max(1, COMMON * count):
            continue
        drawn.add(chain.question)
        answers[answer] += 1
        yield chain
        if len(drawn) == count:
            return
    raise ConfigError(f"the atlas has {len(drawn)} questions of {hops} hops for {split}, not {count}")


def _chain(chains: Chains, start: Entity, hops: int, chance: random.Random) -> Chain | None:
    """A random way from `start`, and a fact at its end, if together they take as many documents as `hops`."""
    way: list[tuple[Relation, Entity]] = []
    path: tuple[str, ...] = (start.id,)
    here = start
    for _ in range(chance.randrange(max(0, hops - 1), min(LONGEST_WAY, hops + 1) + 1)):
        onward = chains.steps(here, path)
        if not onward:
            return None
        way.append(chance.choice(onward))
        here = way[-1][1]
        path += (here.id,)
    chain = chains.chain(start, way, chance.choice([*VALUES[type(here)], ""]))
    return chain if chain is not None and len(chain.gold) == hops else None


def _starts(atlas: Atlas, split: str) -> dict[str, dict[str, list[Entity]]]:
    """Things of the split by country and kind, so that no country or kind crowds out the others."""
    found: dict[str, dict[str, list[Entity]]] = defaultdict(lambda: defaultdict(list))
    for thing in atlas.all():
        if _split(thing.country) == split and not (isinstance(thing, AtlasCity) and not thing.population):
            found[thing.country][type(thing).__name__].append(thing)
    return found


def _split(country: str) -> str:
    return split_of(f"search/country/{country}")
