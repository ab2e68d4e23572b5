"""WebShop's products in memory, and BM25 over them: one copy a process, shared by its sessions."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from agentgym.errors import ConfigError
from agentgym.tasks import Task, TaskSet
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
    def __init__(self, products: dict[str, WebShopProduct]) -> None:
        self.products = products
        self._index = Bm25(ProductDocument(asin, "", (), (), product) for asin, product in products.items())
        self.search = lru_cache(CACHED_SEARCHES)(self._search)
        """Return the numbers of at most 50 products for a query, best first."""

    def _search(self, query: str) -> tuple[str, ...]:
        return tuple(hit.document.id for hit in self._index.search(query, RESULTS))

    def content_hash(self) -> str:
        digest = hashlib.sha256()
        for product in self.products.values():
            digest.update(repr(tuple(product)).encode())
        return digest.hexdigest()


def files(size: str) -> tuple[str, str, str]:
    """Return the names of the files of products, of their attributes and of what people asked for."""
    return f"items_shuffle{SIZES[size]}.json", f"items_ins_v2{SIZES[size]}.json", HUMAN


def load(folder: Path, size: str, goals: str) -> tuple[Catalogue, TaskSet, float]:
    """Return the products and goals of WebShop's files, and a bound of the reward; read anew when the files change.

    Raises ConfigError for files that are not WebShop's, or have no goals.
    """
    changed = tuple((folder / name).stat().st_mtime for name in files(size))
    with _LOADING:
        return _products(folder, size, changed), *_goals(folder, size, goals, changed)


_LOADING = threading.Lock()
"""Sessions that open at once wait for one copy."""


@lru_cache(maxsize=1)
def _products(folder: Path, size: str, changed: tuple[float, ...]) -> Catalogue:
    items, attributes, _ = (folder / name for name in files(size))
    return Catalogue({product.asin: product for product in read_products(items, read_object(attributes))})


@lru_cache(maxsize=4)
def _goals(folder: Path, size: str, goals: str, changed: tuple[float, ...]) -> tuple[TaskSet, float]:
    items, attributes, human = (folder / name for name in files(size))
    catalogue = _products(folder, size, changed)
    if goals == "human":
        source, make = human, human_goals
    else:
        source, make = attributes, synthetic_goals
    setup = {"products": catalogue.content_hash()}
    tasks = [
        task.model_copy(update={"setup": setup}) for task in make(catalogue.products, read_object(source), str(source))
    ]
    if not tasks:
        raise ConfigError(f"{source} has no goal for the products of {items}")
    return TaskSet(split_goals(tasks)), _most_reward(catalogue, tasks)


def _most_reward(catalogue: Catalogue, goals: list[Task]) -> float:
    """Return a bound of the reward: every option of a product may count, however few the goal has."""
    options = max(len(product.options) for product in catalogue.products.values())
    sizes = [(len(goal.grader["attributes"]), len(goal.grader["options"])) for goal in goals]
    return max(1.0, *((attributes + options + 1) / (attributes + wanted + 1) for attributes, wanted in sizes))
