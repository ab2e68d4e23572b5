"""Products and goals of WebShop, out of its own files.

`items_shuffle.json` (1.18 million products) or `items_shuffle_1000.json`, `items_ins_v2.json` or
`items_ins_v2_1000.json` (attributes and made instructions), `items_human_ins.json` (instructions that people wrote).
Fields are read as WebShop's engine reads them; what has no value there is a ConfigError here or has WebShop's default.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentgym.errors import ConfigError
from agentgym.tasks import Task
from agentgym_environments.base.text_env import task_random

NO_PRICE = 100.0
"""Price of a product whose data has none."""
NO_LIMIT = 1_000_000.0
"""Price limit of a goal without one."""
LIMITS = [10.0 * step for step in range(1, 100)]
NO_ATTRIBUTES = ("DUMMY_ATTR",)
LONGEST_ASIN = 10
SHUFFLE_SEED = 233
TEST, VALIDATION = 500, 1500
"""Ends of the test and the validation goals in the shuffled order; the others are for training."""
CHUNK = 1 << 22
LONGEST_RECORD = 1 << 26
SPACE = re.compile(r"[\s,]*")


class WebShopProduct(NamedTuple):
    asin: str
    name: str
    """Its title."""
    description: str
    bullets: tuple[str, ...]
    """Features, on the page of that name."""
    prices: tuple[float, ...]
    """One price, or the least and the greatest."""
    options: tuple[tuple[str, tuple[str, ...]], ...]
    """Name and values of each, in the order of the page."""
    attributes: tuple[str, ...]
    category: str
    query: str
    product_category: str
    """Categories from wide to narrow, separated by "›"."""

    @property
    def price_text(self) -> str:
        return " to ".join(f"${price}" for price in self.prices)

    @property
    def price(self) -> float:
        """Amount that is paid: between the two prices, drawn by the product's number."""
        return self.prices[0] if len(self.prices) == 1 else task_random("webshop", self.asin).uniform(*self.prices)

    @property
    def contents(self) -> str:
        """Text that is searched."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options)
        return " ".join([self.name, self.description, *self.bullets[:1], options]).lower()


class Goal(NamedTuple):
    """Purchase that a task asks for."""

    product: WebShopProduct
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_upper: float


def read_products(path: Path, attributes: Mapping[str, Any]) -> Iterator[WebShopProduct]:
    """Return the products of a file in its order, each number once, without those that WebShop leaves out.

    Raises ConfigError naming the record that is none.
    """
    known: set[str] = set()
    for number, record in enumerate(read_array(path), 1):
        place = f"{path}, product {number}"
        if not isinstance(record, dict) or not isinstance(asin := record.get("asin"), str):
            raise ConfigError(f"{place}: an object with an asin is expected, as in WebShop's items_shuffle.json")
        if asin == "nan" or len(asin) > LONGEST_ASIN or asin in known:
            continue
        known.add(asin)
        yield _product(record, attributes.get(asin, {}), place)


def _product(record: Mapping[str, Any], known: Any, place: str) -> WebShopProduct:
    missing = [name for name in ("name", "query") if not isinstance(record.get(name), str)]
    if missing:
        raise ConfigError(f"{place} has no {', '.join(missing)}")
    bullets = record.get("small_description") or ()
    attributes = known.get("attributes") if isinstance(known, dict) else None
    return WebShopProduct(
        asin=record["asin"],
        name=record["name"],
        description=record.get("full_description") or "",
        bullets=tuple(bullets) if isinstance(bullets, list | tuple) else (str(bullets),),
        prices=prices(record.get("pricing"), place),
        options=_options(record.get("customization_options"), place),
        attributes=tuple(attributes) if isinstance(attributes, list) else NO_ATTRIBUTES,
        category=record.get("category") or "",
        query=record["query"].lower().strip(),
        product_category=record.get("product_category") or "",
    )


def prices(pricing: str | None, place: str) -> tuple[float, ...]:
    """Return one price, or the first two: "$12.99", "$10.00$25.00", "$1,299.00 to $1,500.00"."""
    if not pricing:
        return (NO_PRICE,)
    parts = [re.sub(r"[^\d.]", "", part) for part in str(pricing).split("$")[1:]]
    try:
        return tuple(float(part) for part in parts[:2]) or _no_price(pricing, place)
    except ValueError:
        return _no_price(pricing, place)


def _no_price(pricing: str, place: str) -> tuple[float, ...]:
    raise ConfigError(f"{place}: pricing {pricing!r} holds no price, such as $12.99 or $10.00 to $25.00")


def _options(record: Any, place: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Options by name. A file has an object of arrays of {"value", "image", ...}, or nothing, or empty text."""
    options: dict[str, tuple[str, ...]] = {}
    try:
        for name, values in (record or {}).items():
            if values is not None:
                options[name.lower()] = tuple(value["value"].strip().replace("/", " | ").lower() for value in values)
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"{place}: customization_options is no object of arrays of values: {error!r}") from error
    return tuple(options.items())


def human_goals(products: Mapping[str, WebShopProduct], instructions: Mapping[str, Any], place: str) -> Iterator[Task]:
    """Return the goals that people wrote, in the order of the products. Those without attributes are left out."""
    for asin, product in products.items():
        for number, record in enumerate(instructions.get(asin, ())):
            try:
                attributes, options = record["instruction_attributes"], record["instruction_options"]
                values = options.values() if isinstance(options, dict) else options
                text = record["instruction"].strip(".")
            except (AttributeError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"{place}, {asin}: an instruction has instruction, instruction_attributes and instruction_options; "
                    f"this one lacks {error}"
                ) from error
            if attributes:
                yield _goal(product, number, text, attributes, values)


def synthetic_goals(products: Mapping[str, WebShopProduct], known: Mapping[str, Any], place: str) -> Iterator[Task]:
    """Return the goals that WebShop's authors made of attributes, with each combination of options."""
    for asin, product in products.items():
        record = known.get(asin)
        if not isinstance(record, dict) or (text := record.get("instruction")) is None:
            continue
        if not (attributes := record.get("instruction_attributes")):
            raise ConfigError(f"{place}, {asin}: an instruction without instruction_attributes")
        options = sorted(product.options)
        for number, combination in enumerate(itertools.product(*(values for _, values in options))):
            named = ", and ".join(f"{name}: {value}" for (name, _), value in zip(options, combination))
            yield _goal(product, number, f"{text} with {named}" if named else text, attributes, combination)


def _goal(product: WebShopProduct, number: int, text: str, attributes: Iterable[str], options: Iterable[str]) -> Task:
    name, price = f"{product.asin}-{number}", product.price
    limits = [limit for limit in LIMITS if limit > price][:4]
    limit = max(task_random("webshop", name).sample(limits, 2)) if len(limits) >= 2 else NO_LIMIT
    return Task(
        id=name,
        prompt=text if limit == NO_LIMIT else f"{text}, and price lower than {limit:.2f} dollars",
        grader={
            "kind": "webshop",
            "asin": product.asin,
            "attributes": list(attributes),
            "options": list(options),
            "price_upper": limit,
        },
        metadata={"category": product.category, "query": product.query, "product_category": product.product_category},
    )


def split_goals(goals: Sequence[Task]) -> dict[str, list[Task]]:
    """Return the goals in WebShop's shuffled order: 500 test, 1,000 validation, the rest train; no empty split."""
    order = list(goals)
    random.Random(SHUFFLE_SEED).shuffle(order)
    splits = {"train": order[VALIDATION:], "validation": order[TEST:VALIDATION], "test": order[:TEST]}
    return {split: tasks for split, tasks in splits.items() if tasks}


def read_object(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file. Raises ConfigError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} should be an object by product number, it is {type(content).__name__}")
    return content


def read_array(path: Path) -> Iterator[Any]:
    """Return the elements of the array of a JSON file, one after another: the large file has 5 GB.

    Raises ConfigError for what is no such array.
    """
    decoder = json.JSONDecoder()
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(CHUNK)
            at = SPACE.match(text).end()  # type: ignore[union-attr]
            if text[at : at + 1] != "[":
                raise ConfigError(f"{path} should be an array of products")
            at += 1
            while True:
                at = SPACE.match(text, at).end()  # type: ignore[union-attr]
                if text[at : at + 1] == "]":
                    return
                try:
                    element, at = decoder.raw_decode(text, at)
                except ValueError as error:
                    more = file.read(CHUNK)
                    if not more or len(text) - at > LONGEST_RECORD:
                        raise ConfigError(f"{path} is cut off or not JSON: {error}; fetch it anew") from error
                    text, at = text[at:] + more, 0
                else:
                    yield element
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
