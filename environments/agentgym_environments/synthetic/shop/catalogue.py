"""The catalogue: eighteen hundred products, made from `wares.toml` by one seed, and the search over them."""

from __future__ import annotations

import re
import sqlite3
import threading
import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Any

from agentgym.errors import MissingDependency
from agentgym_environments.base.text_env import task_random

A_KIND = 30
"""Products of a kind."""
FIRST = 1001
"""The number of the first product; the others follow."""
SHOWN = 5
"""Features of a product that a list of results shows: the others are told on the product's page only."""
WORDS = 16
"""Words of a query that are looked at."""
STOP = frozenset(("a", "an", "and", "for", "from", "i", "in", "is", "it", "my", "of", "on", "or", "the", "to", "with"))

Options = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of options and the values on offer; the first is preselected."""


@dataclass(frozen=True)
class Product:
    number: int
    kind: str
    category: str
    brand: str
    model: str
    features: tuple[str, ...]
    """The material, then what else it has; two or so of them are in the title."""
    options: Options
    cents: int
    title: str
    stars: float
    """Rating by other customers, 1 to 5: of no use but to lead astray."""

    @property
    def code(self) -> str:
        return f"P{self.number}"

    @property
    def shown(self) -> tuple[str, ...]:
        """The features that a list of results shows; the others are told on the product's page only."""
        return self.features[:SHOWN]

    @property
    def untitled(self) -> tuple[str, ...]:
        """The features that its title leaves out, so that search does not know of them."""
        return tuple(feature for feature in self.features if feature not in self.title)


@cache
def wares() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("wares.toml").read_text(encoding="utf-8"))


@cache
def products() -> dict[int, Product]:
    """Every product by its number."""
    kinds = [(category, kind) for category in wares()["categories"] for kind in category["kinds"]]
    random = task_random("shop", "catalogue", 1)
    numbers = list(range(FIRST, FIRST + A_KIND * len(kinds)))
    random.shuffle(numbers)  # neighbours in number are not of one kind
    made = [_product(*kinds[i // A_KIND], number, random) for i, number in enumerate(numbers)]
    return {product.number: product for product in sorted(made, key=lambda product: product.number)}


@cache
def kinds() -> dict[str, tuple[Product, ...]]:
    """Every kind and its products."""
    found: dict[str, list[Product]] = {}
    for product in products().values():
        found.setdefault(product.kind, []).append(product)
    return {kind: tuple(some) for kind, some in found.items()}


def _product(category: dict[str, Any], kind: dict[str, Any], number: int, random: Random) -> Product:
    brand, model = random.choice(wares()["brands"]), f"{random.choice(wares()['models'])} {random.randint(1, 9)}"
    material = random.choice(category["materials"])
    others = random.sample(category["features"], random.randint(3, 4))
    others += random.sample(kind["own"], random.randint(1, 2))
    random.shuffle(others)
    before, after = random.choice([("", material), (others[0], ""), (others[0], material), (material, others[1])])
    title = " ".join(word for word in (brand, model, before, kind["name"]) if word) + (f", {after}" if after else "")
    low, high = kind["price"]
    cents = 100 * random.randint(low, high - 1) + random.choice([0, 49, 50, 90, 95, 99])
    sorts = category["options"].items()
    options = tuple((name, _offered(wares()["options"][sort], random)) for name, sort in sorts)
    stars = random.randint(28, 50) / 10
    return Product(
        number, kind["name"], category["name"], brand, model, (material, *others), options, cents, title, stars
    )


def _offered(values: list[str], random: Random) -> tuple[str, ...]:
    """Three to six of them, in their order."""
    chosen = set(random.sample(range(len(values)), random.randint(min(3, len(values)), min(6, len(values)))))
    return tuple(value for index, value in enumerate(values) if index in chosen)


# Search.

_one_at_a_time = threading.Lock()


@cache
def _index() -> sqlite3.Connection:
    """SQLite's full-text index over titles, kinds and categories, in memory. Raises MissingDependency."""
    index = sqlite3.connect(":memory:", check_same_thread=False)
    try:
        index.execute("CREATE VIRTUAL TABLE wares USING fts5(title, rest, tokenize = 'porter ascii')")
    except sqlite3.OperationalError as error:
        raise MissingDependency(f"the shop needs a Python whose SQLite has FTS5: {error}") from error
    rows = [(number, one.title, f"{one.category} {one.kind}") for number, one in products().items()]
    index.executemany("INSERT INTO wares (rowid, title, rest) VALUES (?, ?, ?)", rows)
    return index


@lru_cache(maxsize=4096)
def search(query: str) -> tuple[int, ...]:
    """Numbers of the products that have any word of the query, best first (BM25, titles count half again)."""
    words = [word for word in re.findall(r"[a-z0-9]+", query.lower()) if word not in STOP][:WORDS]
    if not words:
        return ()
    match_query = " OR ".join(f'"{word}"' for word in dict.fromkeys(words))
    with _one_at_a_time:
        rows = _index().execute(
            "SELECT rowid FROM wares WHERE wares MATCH ? ORDER BY round(bm25(wares, 1.5, 1.0), 6), rowid LIMIT 100",
            (match_query,),
        )
        return tuple(number for (number,) in rows)
