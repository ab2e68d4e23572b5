"""The shop: one customer's state, and what a visit of a page or the press of a button makes of it.

Pure Python: the text environment and the web application are two front ends of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentgym_environments.synthetic.shop.catalogue import products, search

A_PAGE = 5
"""Results on a page."""
BASKET = 5
"""Most lines in a basket."""
ADDRESSES = ("home", "office", "parents")
"""Addresses of a customer's account; the first is where an order goes unless another is chosen."""
PAGES = ("home", "results", "product", "basket", "checkout", "account", "thanks")


@dataclass(frozen=True)
class Line:
    """A product in the basket, in the options chosen."""

    product: int
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class State:
    """All that a shop knows of a customer."""

    page: str = "home"
    query: str = ""
    number: int = 1
    """Number of the page of results."""
    product: int = 0
    """The one looked at, or 0."""
    chosen: tuple[tuple[str, str], ...] = ()
    """Options of that product that are chosen."""
    basket: tuple[Line, ...] = ()
    address: str = ADDRESSES[0]
    ordered: bool = False


Event = tuple[str, ...]
"""Event by a customer: ("search", words, page), ("product", number), ("home",), ("basket",), ("checkout",),
("account",), ("choose", name, value), ("add",), ("buy",), ("remove", line), ("order",)."""


class EventRefused(Exception):
    """The shop has no such page or button there."""


def go(state: State, event: Event) -> State:
    """The state after an event. Raises EventRefused, saying why."""
    if state.ordered:
        raise EventRefused("the order is placed")
    verb, *rest = event
    if verb in ("home", "basket", "checkout", "account"):
        return replace(state, page=verb)
    if verb == "search":
        return _results(state, *rest)
    if verb == "product":
        return _look(state, rest[0])
    if verb == "choose":
        return _choose(state, *rest)
    if verb in ("add", "buy"):
        return _add(state, "basket" if verb == "add" else "checkout")
    if verb == "remove":
        return _remove(state, rest[0])
    if verb == "order" and state.page == "checkout" and state.basket:
        return replace(state, page="thanks", ordered=True)
    raise EventRefused(f"there is no {verb} here")


def found(state: State) -> tuple[int, ...]:
    """The products on the present page of results."""
    return search(state.query)[(state.number - 1) * A_PAGE : state.number * A_PAGE]


def last_page(query: str) -> int:
    return max(1, -(-len(search(query)) // A_PAGE))


def total(state: State) -> int:
    """Cents."""
    return sum(products()[line.product].cents for line in state.basket)


def _results(state: State, query: str, number: str = "1") -> State:
    query = " ".join(query.split())[:200]
    if not query:
        raise EventRefused("search for something")
    if not number.isascii() or not number.isdigit() or len(number) > 3 or not 1 <= int(number) <= last_page(query):
        raise EventRefused(f"there is no page {number} of results")
    return replace(state, page="results", query=query, number=int(number))


def _look(state: State, number: str) -> State:
    if not number.isascii() or not number.isdigit() or len(number) > 6 or int(number) not in products():
        raise EventRefused(f"there is no product {number}")
    product = products()[int(number)]
    if state.product == product.number:
        return replace(state, page="product")
    first = tuple((name, values[0]) for name, values in product.options)
    return replace(state, page="product", product=product.number, chosen=first)


def _choose(state: State, name: str, value: str) -> State:
    if state.page == "account" and name == "address":
        if value not in ADDRESSES:
            raise EventRefused(f"the account has no address {value}")
        return replace(state, address=value)
    offered = dict(products()[state.product].options) if state.page == "product" else {}
    if value not in offered.get(name, ()):
        raise EventRefused(f"there is no {name} {value} here")
    return replace(state, chosen=tuple((one, value if one == name else old) for one, old in state.chosen))


def _add(state: State, then: str) -> State:
    if state.page != "product":
        raise EventRefused("no product is shown")
    if len(state.basket) == BASKET:
        raise EventRefused(f"the basket holds {BASKET} products")
    line = Line(state.product, state.chosen)
    return replace(state, page=then, basket=(*state.basket, line))


def _remove(state: State, line: str) -> State:
    if state.page != "basket" or line not in map(str, range(1, len(state.basket) + 1)):
        raise EventRefused(f"the basket has no line {line}")
    index = int(line) - 1
    return replace(state, basket=state.basket[:index] + state.basket[index + 1 :])
