"""WebShop's products in memory, and BM25 over them: one copy a process, shared by its sessions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from agentgym.errors import ConfigError
from agentgym.tasks import TaskSet
from agentgym_environments.backends.retrieval.document import Document
from agentgym_environments.backends.retrieval.index import Bm25
from agentgym_environments.tasks.webshop import (
    WebShopProduct,
    human_goals,
    read_object,
    read_products,
    split_goals,
    synthetic_goals,
)

RESULTS = 50
SIZES = {"all": "", "small": "_1000"}
"""End of the names of the files, for all products and for a thousand."""
GOALS = ("human", "synthetic")
HUMAN = "items_human_ins.json"
CACHED_SEARCHES = 4096


@dataclass(frozen=True)
class ProductDocument(Document):
    """A product as the index reads it; the text is not kept a second time."""

    product: WebShopProduct | None = None

    @property
    def text(self) -> str:
        return self.product.contents if self.product else ""


class Catalogue:
    def __init__(self, products: dict[str, WebShopProduct], goals: TaskSet) -> None:
        self.products = products
        self.tasks = goals
        self.most_reward = _most_reward(products, goals)
        self._index = Bm25(ProductDocument(asin, "", (), (), product) for asin, product in products.items())
        self.search = lru_cache(CACHED_SEARCHES)(self._search)
        """Return the numbers of at most 50 products for a query, best first."""

    def _search(self, query: str) -> tuple[str, ...]:
        return tuple(hit.document.id for hit in self._index.search(query, RESULTS))


def _most_reward(products: dict[str, WebShopProduct], goals: TaskSet) -> float:
    """Return a bound of the reward: every option of a product may count, however few the goal has."""
    options = max(len(product.options) for product in products.values())
    most = 1.0
    for split, size in goals.splits.items():
        for place in range(size):
            grader = goals[split, place].grader
            attributes = len(grader["attributes"])
            most = max(most, (attributes + options + 1) / (attributes + len(grader["options"]) + 1))
    return most


def files(size: str) -> tuple[str, str, str]:
    """Return the names of the files of products, of their attributes and of what people asked for."""
    return f"items_shuffle{SIZES[size]}.json", f"items_ins_v2{SIZES[size]}.json", HUMAN


@lru_cache(maxsize=4)
def load(folder: Path, size: str, goals: str, changed: tuple[float, ...]) -> Catalogue:
    """Return the products and goals of WebShop's files. changed: when the files were; others are read anew.

    Raises ConfigError for files that are not WebShop's, or have no goals.
    """
    items, attributes, human = (folder / name for name in files(size))
    known = read_object(attributes)
    products = {product.asin: product for product in read_products(items, known)}
    if goals == "human":
        found = list(human_goals(products, read_object(human), str(human)))
    else:
        found = list(synthetic_goals(products, known, str(attributes)))
    if not found:
        raise ConfigError(f"{human if goals == 'human' else attributes} has no goal for the products of {items}")
    digest = hashlib.sha256()
    for product in products.values():
        digest.update(repr(tuple(product)).encode())
    where = {"products": digest.hexdigest()}
    tasks = [task.model_copy(update={"setup": where}) for task in found]
    return Catalogue(products, TaskSet(split_goals(tasks)))
