"""Lazy policies: they buy by a product's place or price in the results, or click at random, and read no product."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping

import numpy as np

from agentgym.env import Action, LazyPolicy, Step
from agentgym_environments.benchmarks.webshop.pages import BUY
from agentgym_environments.benchmarks.webshop.solver import LIMIT, choices, results, words_of

Offer = tuple[str, str, float]
"""Number, title and price."""


def buys(choose: Callable[[list[Offer]], Offer], *, options: bool = False) -> LazyPolicy:
    """Search the instruction as it is, and buy a result by its place or price."""

    def play(step: Step, rng: np.random.Generator) -> Generator[Action, Step, None]:
        instruction = str(step.observation).split(" [SEP] ")[2]
        step = yield f"search[{instruction}]"
        if found := results(step):
            step = yield f"click[{choose(found)[0]}]"
            for value in list(choices(step, words_of(LIMIT.sub("", instruction)))) if options else ():
                step = yield f"click[{value}]"
        yield f"click[{BUY}]"

    return play


def clicks(step: Step, rng: np.random.Generator) -> Generator[Action, Step, None]:
    """Do anything that the page offers until something is bought."""
    while True:
        step = yield str(rng.choice(step.info["available_actions"]))


LAZY_POLICIES: Mapping[str, LazyPolicy] = {
    "buy the first result": buys(lambda found: found[0]),
    "buy the first result with options of the instruction": buys(lambda found: found[0], options=True),
    "buy the last result": buys(lambda found: found[-1]),
    "buy the cheapest": buys(lambda found: min(found, key=lambda offer: offer[2])),
    "click anything": clicks,
}
