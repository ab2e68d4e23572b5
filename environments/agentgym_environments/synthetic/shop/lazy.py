"""Lazy policies: they search, take a result by its place or price, and buy it without reading what it has."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from typing import NamedTuple

import numpy as np

from agentgym.env import Action, LazyPolicy, Step

BARE = re.compile(
    r"\b(?:I|am|looking|for|at|most|euros?|Please|buy|It|must|not|cost|more|than|"
    r"Order|My|limit|is|need|and|want|to|pay|in)\b"
)
"""Words of a task that name nothing."""


class Result(NamedTuple):
    """One line of a list of results."""

    code: str
    line: str
    euros: float


Query = Callable[[str], str]
Choice = Callable[[list[Result], str, np.random.Generator], Result]


def whole(task: str) -> str:
    return task


def wanted(task: str) -> str:
    """The kind and what is in brackets."""
    found = re.search(r"(?:for|buy|Order|need|things:|order|most:) ([^,(]*?) \(([^)]*)\)", task)
    return f"{found[2]} {found[1]}" if found else task


def kind(task: str) -> str:
    found = re.search(r"([^,(]*?) \(", task)
    return found[1].split(" buy ")[-1].removeprefix("I am looking for ").removeprefix("I need ") if found else task


def nouns(task: str) -> str:
    return " ".join(re.findall(r"[\w-]+", BARE.sub(" ", task)))


def features(task: str) -> str:
    return " ".join(re.findall(r"\(([^)]*)\)", task))


def affordable(results: list[Result], task: str) -> list[Result]:
    limit = int((re.findall(r"(\d+) euros", task) or ["0"])[0])
    return [result for result in results if result.euros <= limit] or results


def at(place: int, within: bool = False) -> Choice:
    def choose(results: list[Result], task: str, rng: np.random.Generator) -> Result:
        some = affordable(results, task) if within else results
        return some[max(-len(some), min(place, len(some) - 1))]

    return choose


def by_price(place: int) -> Choice:
    """The cheapest (0), or the dearest within the limit (-1)."""
    return lambda results, task, rng: sorted(affordable(results, task), key=lambda result: result.euros)[place]


def any_within(results: list[Result], task: str, rng: np.random.Generator) -> Result:
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


def _results(step: Step) -> list[Result]:
    lines = re.findall(r"(?m)^\[(P\d+)\] (.*), ([\d.]+) euros$", str(step.observation))
    return [Result(code, line, float(euros)) for code, line, euros in lines]


QUERIES: Mapping[str, Query] = {
    "the task's text": whole,
    "features and kind": wanted,
    "the kind": kind,
    "the task's nouns": nouns,
    "the features": features,
}
CHOICES: Mapping[str, Choice] = {
    "first": at(0),
    "second": at(1),
    "third": at(2),
    "last": at(-1),
    "first within the limit": at(0, within=True),
    "last within the limit": at(-1, within=True),
    "cheapest": by_price(0),
    "dearest within the limit": by_price(-1),
    "any within the limit": any_within,
}


def _each(query: Query) -> list[tuple[str, tuple[Query, Choice]]]:
    return [(name, (query, choice)) for name, choice in CHOICES.items()]


LAZY_POLICIES: Mapping[str, LazyPolicy] = {
    **{
        f"search {q}, buy the {c}": buys(query, choice) for q, query in QUERIES.items() for c, choice in CHOICES.items()
    },
    **{f"page through the kind, buy the {c}": buys(kind, choice, pages=4) for c, choice in CHOICES.items()},
    "search the task's text, buy the first without options": buys(whole, at(0), options=False),
}
"""Lazy policies by what they do."""
