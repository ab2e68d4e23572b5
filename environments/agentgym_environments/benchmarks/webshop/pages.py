"""WebShop's pages: what each shows, what can be clicked on it, and where a click leads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from agentgym_environments.benchmarks.webshop.catalogue import Catalogue
from agentgym_environments.tasks.webshop import WebShopProduct

PAGE_SIZE = 10
BACK, NEXT, PREVIOUS, BUY = "Back to Search", "Next >", "< Prev", "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews", "Attributes")
OBSERVATIONS = ("text", "text_rich")
LONGEST_QUERY = 1000
"""Letters of a query that are looked at."""


class Node(NamedTuple):
    """One piece of a page, in reading order."""

    text: str
    kind: Literal["text", "button", "option", "product"] = "text"
    option: str = ""
    """Name of the option of which this is a value."""


@dataclass(frozen=True)
class WebShopState:
    """The customer's place in the shop."""

    page: str = "search"
    """"search", "results", "item", one of SUB_PAGES, or "done"."""
    query: str = ""
    number: int = 1
    """Page of the results."""
    asin: str = ""
    options: tuple[tuple[str, str], ...] = ()
    """Chosen ones, by name."""
    opened: tuple[str, ...] = ()
    """Products whose pages were opened since the last search page."""


def search(state: WebShopState, query: str) -> WebShopState:
    return WebShopState("results", query[:LONGEST_QUERY], opened=state.opened)


def click(state: WebShopState, target: str, catalogue: Catalogue, *, show_attributes: bool) -> WebShopState | None:
    """Return the state after a click on what a page names so, in lower case; None where it names nothing so."""
    nodes = [node for node in shown(state, "", catalogue, show_attributes) if _label(node) == target]
    if not nodes or state.page == "search":
        return None
    if target == BUY.lower():
        return replace(state, page="done")
    if target == BACK.lower():
        return WebShopState()
    if target == NEXT.lower() and state.page == "results":
        return replace(state, number=state.number + 1)
    if target == PREVIOUS.lower():
        return _previous(state)
    if page := next((name for name in SUB_PAGES if name.lower() == target), None):
        return replace(state, page=page)
    node = nodes[-1]  # of options with one name the last is clicked
    if node.kind == "product":
        opened = tuple(dict.fromkeys((*state.opened, node.text)))
        return replace(state, page="item", asin=node.text, options=(), opened=opened)
    return replace(state, options=tuple({**dict(state.options), node.option: node.text}.items()))


def _previous(state: WebShopState) -> WebShopState:
    if state.page == "results":
        return replace(state, number=state.number - 1)
    if state.page == "item":
        return replace(state, page="results", asin="", options=())
    return replace(state, page="item")


def clickable(state: WebShopState, catalogue: Catalogue, *, show_attributes: bool) -> list[str]:
    """Return what can be clicked, each once, in lower case; on the search page nothing can."""
    if state.page == "search":
        return []
    nodes = shown(state, "", catalogue, show_attributes)
    return list(dict.fromkeys(_label(node) for node in nodes if _label(node)))


def _label(node: Node) -> str:
    return " ".join(node.text.lower().split()) if node.kind != "text" else ""


def shown(state: WebShopState, instruction: str, catalogue: Catalogue, show_attributes: bool = False) -> Iterator[Node]:
    """Yield what a page shows."""
    if state.page == "search":
        yield Node("WebShop")
    yield Node("Instruction:")
    yield Node(instruction)
    if state.page == "search":
        yield Node("Search", "button")
        return
    yield Node(BACK, "button")
    if state.page == "results":
        yield from _results(state, catalogue)
        return
    yield Node(PREVIOUS, "button")
    product = catalogue.products[state.asin]
    if state.page == "item":
        yield from _item(product, show_attributes)
    else:
        yield from (Node(text) for text in sub_page(product, state.page))


def _results(state: WebShopState, catalogue: Catalogue) -> Iterator[Node]:
    found = catalogue.search(state.query)
    yield Node(f"Page {state.number} (Total results: {len(found)})")
    if state.number > 1:
        yield Node(PREVIOUS, "button")
    if state.number * PAGE_SIZE < len(found):
        yield Node(NEXT, "button")
    for asin in found[(state.number - 1) * PAGE_SIZE : state.number * PAGE_SIZE]:
        product = catalogue.products[asin]
        yield Node(asin, "product")
        yield Node(product.name)
        yield Node(product.price_text)


def _item(product: WebShopProduct, show_attributes: bool) -> Iterator[Node]:
    for name, values in product.options:
        yield Node(name)
        yield from (Node(value, "option", name) for value in values)
    yield Node(product.name)
    yield Node(f"Price: {product.price_text}")
    yield Node("Rating: N.A.")
    yield from (Node(name, "button") for name in (SUB_PAGES if show_attributes else SUB_PAGES[:3]))
    yield Node(BUY, "button")


def sub_page(product: WebShopProduct, page: str) -> tuple[str, ...]:
    """Return the texts of one of a product's further pages."""
    if page == "Description":
        return (product.description or "No Description",)
    if page == "Features":
        return product.bullets or ("No Features",)
    if page == "Reviews":
        return ("No reviews found",)
    return (*product.attributes, product.category, product.query, product.product_category)


def text_of(nodes: Iterator[Node]) -> str:
    """Return a page as the observation mode `text` has it."""
    return " [SEP] ".join(node.text.strip() for node in nodes if node.text.strip())


def rich_text_of(nodes: Iterator[Node], state: WebShopState) -> str:
    """Return a page as the observation mode `text_rich` has it."""
    chosen = json.dumps(dict(state.options))
    lines: list[str] = []
    for node in nodes:
        clicked = (
            f'"{node.text}"' in chosen
            if node.kind == "option"
            else node.kind == "product" and node.text in state.opened
        )
        if clicked and node.kind == "option":
            lines.insert(0, f"You have clicked {node.text}.")
        lines.append(_rich(node, "clicked button" if clicked else "button"))
    return "\n".join(lines) + "\n"


def _rich(node: Node, mark: str) -> str:
    if node.kind == "text":
        return node.text
    before = {"option": "  ", "product": "\n"}.get(node.kind, "")
    return f"{before}[{mark}] {node.text} [{mark}_]"


def read_state(saved: dict[str, Any]) -> WebShopState:
    """Return the state that `asdict` made JSON of."""
    options = tuple((str(name), str(value)) for name, value in saved["options"])
    return WebShopState(**{**saved, "options": options, "opened": tuple(map(str, saved["opened"]))})
