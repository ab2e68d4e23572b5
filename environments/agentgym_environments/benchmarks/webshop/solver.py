"""Scripted customers: one that knows the product of the goal, and one that reads pages only."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator

import numpy as np

from agentgym.env import Action, Step
from agentgym_environments.benchmarks.webshop import pages
from agentgym_environments.benchmarks.webshop.catalogue import Catalogue
from agentgym_environments.benchmarks.webshop.pages import WebShopState
from agentgym_environments.benchmarks.webshop.reward import matching_options, normal_color
from agentgym_environments.tasks.webshop import Goal, WebShopProduct


def next_action(goal: Goal, state: WebShopState, catalogue: Catalogue) -> str:
    """Return what brings the goal's own product with the goal's options nearer, from any page."""
    product = goal.product
    if state.page in pages.SUB_PAGES:
        return f"click[{pages.PREVIOUS}]"
    if state.page == "item" and state.asin == product.asin:
        wanted, chosen = wanted_options(goal), dict(state.options)
        missing = [value for name, value in wanted.items() if chosen.get(name) != value]
        if missing:
            return f"click[{missing[0]}]"
        return f"click[{pages.BUY if chosen.keys() == wanted.keys() else pages.PREVIOUS}]"
    query = _query(product, catalogue)
    if state.page != "results" or state.query != query:
        return f"search[{query}]"
    found = catalogue.search(query)
    place = found.index(product.asin) // pages.PAGE_SIZE + 1 if product.asin in found else 0
    if not place:
        return f"search[{query}]"  # no search finds it
    if place == state.number:
        return f"click[{product.asin}]"
    return f"click[{pages.NEXT if place > state.number else pages.PREVIOUS}]"


def _query(product: WebShopProduct, catalogue: Catalogue) -> str:
    """Return the shortest of a few queries that finds a product."""
    words = product.contents.split()
    queries = [" ".join(product.name.lower().split()), *(" ".join(words[at : at + 40]) for at in range(0, 400, 40))]
    queries = [query[: pages.LONGEST_QUERY].strip() for query in queries]
    return next((query for query in queries if query and product.asin in catalogue.search(query)), queries[0])


def wanted_options(goal: Goal) -> dict[str, str]:
    """Return a value for as many options of the product as the goal has: equal ones first, then those that count."""
    wanted: dict[str, str] = {}
    for one in _candidates(goal):
        name, value = one
        if name not in wanted and len(wanted) < len(goal.options) and _clickable(goal.product, name, value):
            wanted[name] = value
    return wanted


def _candidates(goal: Goal) -> Iterator[tuple[str, str]]:
    pairs = [(name, value) for name, values in goal.product.options for value in values]
    for wanted in goal.options:
        yield from (pair for pair in pairs if pair[1] == wanted.strip().lower())
    for wanted in goal.options:
        yield from (pair for pair in pairs if normal_color(pair[1]) == normal_color(wanted))
    yield from matching_options(goal.product, goal.options, pairs)


def _clickable(product: WebShopProduct, name: str, value: str) -> bool:
    """Return whether a click on a value chooses this option: of options with one value it is the last."""
    return [option for option, values in product.options if value in values][-1] == name


STOP = frozenset(
    re.findall(
        r"\w+",
        """a an and any are as at be but by can could do find for from get give has have i if in is it its like lower
    less looking me my need of on or please price so some that the than them there they this to want which with would
    you dollars buy im would m""",
    )
)
LIMIT = re.compile(r",? and price lower than ([\d.]+) dollars")
LOOKED_AT = 5


def read_pages(step: Step, rng: np.random.Generator) -> Generator[Action, Step, None]:
    """Search the instruction, read the first products within the price, and buy the one with most of its words."""
    instruction = _after(step, "Instruction:")
    limit = float(found[1]) if (found := LIMIT.search(instruction)) else float("inf")
    wanted = words_of(LIMIT.sub("", instruction))
    step = yield f"search[{' '.join(wanted)}]"
    offers = results(step)
    within = [asin for asin, _, price in offers if price <= limit] or [asin for asin, *_ in offers]
    best, best_score = "", -1.0
    for asin in within[:LOOKED_AT]:
        step = yield f"click[{asin}]"
        text = str(step.observation).partition(instruction)[2]
        for page in ("description", "features"):
            step = yield f"click[{page}]"
            text += str(step.observation).partition(instruction)[2]
            step = yield f"click[{pages.PREVIOUS}]"
        score = len(set(wanted) & set(words_of(text)))
        if score > best_score:
            best, best_score = asin, score
        step = yield f"click[{pages.PREVIOUS}]"
    if best:
        step = yield f"click[{best}]"
        for value in choices(step, wanted):
            step = yield f"click[{value}]"
    yield f"click[{pages.BUY}]"


def choices(step: Step, wanted: list[str]) -> Iterator[str]:
    """Yield the value of each option on a product's page that the most words of the instruction are in."""
    targets = {action[6:-1] for action in step.info["available_actions"]}
    page = str(step.observation).partition(f"[SEP] {pages.PREVIOUS} [SEP] ")[2].partition(" [SEP] Price: ")[0]
    values: list[str] = []
    for text in [*page.split(" [SEP] "), ""]:
        if text in targets:
            values.append(text)
            continue
        fitting = {
            value: words_of(value) for value in values if set(words_of(value)) <= set(wanted) and words_of(value)
        }
        if fitting:
            yield max(fitting, key=lambda value: len(fitting[value]))
        values = []


def results(step: Step) -> list[tuple[str, str, float]]:
    """Return number, title and least price of each product of a results page."""
    parts = str(step.observation).split(" [SEP] ")
    targets = {action[6:-1] for action in step.info["available_actions"]}
    at = [place for place, part in enumerate(parts) if part.lower() in targets and place + 2 < len(parts)]
    return [
        (parts[place], parts[place + 1], float(price[1]))
        for place in at
        if (price := re.match(r"\$([\d.]+)", parts[place + 2]))
    ]


def words_of(text: str) -> list[str]:
    """Return the words of a text that say something, each once, in lower case."""
    words = re.findall(r"[a-z0-9][a-z0-9'.]*[a-z0-9]|[a-z0-9]", text.lower())
    return list(dict.fromkeys(word for word in words if word not in STOP))


def _after(step: Step, label: str) -> str:
    parts = str(step.observation).split(" [SEP] ")
    return parts[parts.index(label) + 1]
