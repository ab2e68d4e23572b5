"""Lazy policies: they search, take a result by its place or price, and buy it without reading what it has."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from typing import NamedTuple

import numpy as np

from agentgym.env import Action, LazyPolicy, Step


class Offer(NamedTuple):
    """One line of a list of results."""

    code: str
    line: str
    euros: float


Query = Callable[[str], str]
Choice = Callable[[list[Offer], str, np.random.Generator], Offer]


def task_text(task: str) -> str:
    return task


def wanted(task: str) -> str:
    """The kind and what is in brackets."""
    found = re.search(r"(?:for|buy|Order|need|things:|order|most:) ([^,(]*?) \(([^)]*)\)", task)
    return f"{found[2]} {found[1]}" if found else task


def kind(task: str) -> str:
    found = re.search(r"([^,(]*?) \(", task)
    return found[1].split(" buy ")[-1].removeprefix("I am looking for ").removeprefix("I need ") if found else task


def affordable(results: list[Offer], task: str) -> list[Offer]:
    limit = int((re.findall(r"(\d+) euros", task) or ["0"])[0])
    return [result for result in results if result.euros <= limit] or results


def at(place: int, within: bool = False) -> Choice:
    def choose(results: list[Offer], task: str, rng: np.random.Generator) -> Offer:
        some = affordable(results, task) if within else results
        return some[max(-len(some), min(place, len(some) - 1))]

    return choose


def by_price(place: int) -> Choice:
    """The cheapest (0), or the dearest within the limit (-1)."""
    return lambda results, task, rng: sorted(affordable(results, task), key=lambda result: result.euros)[place]


def any_within(results: list[Offer], task: str, rng: np.random.Generator) -> Offer:
    some = affordable(results, task)
    return some[int(rng.integers(len(some)))]


def buys(query: Query, choice: Choice, pages: int = 1, options: bool = True) -> LazyPolicy:
    """Search, choose a result of the first `pages` pages, choose the options that the task names, and order."""

    def play(step: Step, rng: np.random.Generator) -> Generator[Action, Step, None]:
        task = str(step.observation).partition("\n")[0].removeprefix("Task: ")
        step = yield f"search {query(task)}"
        results = _results(step)
        for _ in range(pages - 1):
            if "[Next page]" in str(step.observation):
                step = yield "click Next page"
                results += _results(step)
        if results:
            step = yield f"click {choice(results, task, rng).code}"
            for name, values in re.findall(r"(?m)^([a-z]+): (.*\(.*\).*)$", str(step.observation)) if options else ():
                for value in values.replace("(", "").replace(")", "").split(", "):
                    if f"{name} {value}" in task:
                        step = yield f"choose {name} {value}"
            step = yield "click Buy now"
        yield "click Place order"

    return play


def _results(step: Step) -> list[Offer]:
    lines = re.findall(r"(?m)^\[(P\d+)\] (.*), ([\d.]+) euros$", str(step.observation))
    return [Offer(code, line, float(euros)) for code, line, euros in lines]


QUERIES: Mapping[str, Query] = {
    "the task's text": task_text,
    "features and kind": wanted,
    "the kind": kind,
}
CHOICES: Mapping[str, Choice] = {
    "first": at(0),
    "second": at(1),
    "first within the limit": at(0, within=True),
    "last within the limit": at(-1, within=True),
    "cheapest": by_price(0),
    "dearest within the limit": by_price(-1),
    "any within the limit": any_within,
}
LAZY_POLICIES: Mapping[str, LazyPolicy] = {
    f"search {q}, buy the {c}": buys(query, choice) for q, query in QUERIES.items() for c, choice in CHOICES.items()
} | {
    "page through the kind, buy the cheapest": buys(kind, by_price(0), pages=4),
    "page through the kind, buy the dearest within the limit": buys(kind, by_price(-1), pages=4),
    "page through the kind, buy any within the limit": buys(kind, any_within, pages=4),
    "search the task's text, buy the first without options": buys(task_text, at(0), options=False),
}
"""Lazy policies by what they do."""
