"""Lazy readers: they answer with what the question or the first search shows, and read nothing twice."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator

import numpy as np

from agentgym.env import Action, LazyPolicy, Step
from agentgym_environments.benchmarks.search_qa.make_tasks import TRADES

Choose = Callable[[str, np.random.Generator], str]
"""Makes an answer of what was read."""


def _names(text: str) -> list[str]:
    """Words with a capital, those beside one another together."""
    return re.findall(r"[A-Z]\w+(?: (?:in )?[A-Z]\w+)*", text) or ["nothing"]


def at_once(choose: Choose) -> LazyPolicy:
    """A policy that answers without a search."""

    def play(step: Step, rng: np.random.Generator) -> Generator[Action, Step, None]:
        while True:
            yield f"answer {choose(str(step.observation).removeprefix('Question: '), rng)}"

    return play


def after_one_search(choose: Choose, *, in_full: bool) -> LazyPolicy:
    """A policy that searches the question, or the last name in it, and answers from what is found."""

    def play(step: Step, rng: np.random.Generator) -> Generator[Action, Step, None]:
        question = str(step.observation).removeprefix("Question: ")
        step = yield f"search {question if in_full else _names(question)[-1]}"
        found = str(step.observation).partition("\n")[2]
        while True:
            yield f"answer {choose(found, rng)}"

    return play


def passage(place: int, choose: Choose) -> Choose:
    """Choose from the passage at one place alone."""
    return lambda text, rng: choose((text.split("\n") + [""] * place)[place], rng)


def last_word(text: str, rng: np.random.Generator) -> str:
    return (re.findall(r"\w+", text) or ["nothing"])[-1]


def any_name(text: str, rng: np.random.Generator) -> str:
    return str(rng.choice(_names(text)))


LAZY_POLICIES = {
    "answers with a profession": at_once(lambda text, rng: TRADES[0]),
    "answers with the question": at_once(lambda text, rng: text),
    "answers with a name of the question": at_once(any_name),
    **{
        f"searches {what}, answers with {how} of passage {place + 1}": after_one_search(
            passage(place, choose), in_full=in_full
        )
        for what, in_full in (("the question", True), ("its last name", False))
        for how, choose in (("the last word", last_word), ("a name", any_name))
        for place in range(3)
    },
}
