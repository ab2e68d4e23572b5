"""Lazy policies: they look up words of the task on the page, or do not read the task at all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping

import numpy as np

from agentgym.env import Action, LazyPolicy, Step
from agentgym_environments.benchmarks.miniwob.elements import Elements, PageElement

FIELDS = ("textbox", "searchbox", "spinbutton", "date", "time")
LISTS = ("combobox", "listbox")

Words = Callable[[str, Elements], list[str]]
"""Return the words that fields are filled with, from the task and the page."""


def read(step: Step) -> tuple[str, Elements]:
    """Return the task and what can be acted on, from an observation of kind "tree"."""
    before, _, tree = str(step.observation).partition("Task: ")[2].partition("\n")
    lines = [line for line in tree.splitlines() if re.match(r" *\[\d+\] ", line)]
    return before, Elements("\n".join(lines))


def clicks(order: Callable[[list[PageElement], np.random.Generator], PageElement]) -> LazyPolicy:
    """Click one element a turn without reading the task."""

    def play(step: Step, rng: np.random.Generator) -> Generator[Action, Step, None]:
        while True:
            elements = read(step)[1]
            step = yield f"click {order(elements, rng).id}" if elements else "wait"

    return play


def all_in_order(backwards: bool = False) -> LazyPolicy:
    """Click every element once, as they stand on the page."""

    def play(step: Step, rng: np.random.Generator) -> Generator[Action, Step, None]:
        clicked: set[int] = set()
        while True:
            fresh = [element for element in read(step)[1] if element.id not in clicked]
            element = fresh[-1 if backwards else 0] if fresh else None
            clicked.add(element.id if element else 0)
            step = yield f"click {element.id}" if element else "wait"

    return play


def quoted(task: str, view: Elements) -> list[str]:
    return re.findall(r'"([^"]*)"', task)


def numbers(task: str, view: Elements) -> list[str]:
    return re.findall(r"-?\d+(?:[:/]\d+)*(?: [AP]M)?", task)


def objects(task: str, view: Elements) -> list[str]:
    """The objects of verbs: "Select Amata", "Enter 08/12/2011 as the date"."""
    return re.findall(
        r"(?:Select|Enter|Type|enter|type|Choose) (?:the )?(.+?)(?: as | from | with | and | into |$)", task
    )


def texts(task: str, view: Elements) -> list[str]:
    return [element.name or element.value for element in view if element.role == "text" or element.value]


def anything(task: str, view: Elements) -> list[str]:
    """Quoted words; else numbers; else names; else what the page shows."""
    return quoted(task, view) or numbers(task, view) or re.findall(r"(?<!^)\b[A-Z]\w+", task) or texts(task, view)


def fills(words: Words, clicks_named: bool = False, same: bool = False, backwards: bool = False) -> LazyPolicy:
    """Fill fields with words in their order (`same`: all with the first), then click the last button.

    clicks_named: choose and click first what the task names.
    """

    def play(step: Step, rng: np.random.Generator) -> Generator[Action, Step, None]:
        done: set[tuple[str, str, int]] = set()
        while True:
            task, view = read(step)
            wanted = next(_moves(task, view, words(task, view), done, clicks_named, same, backwards), None)
            step = yield wanted or _last_button(task, view)

    return play


def _moves(
    task: str,
    view: Elements,
    words: list[str],
    done: set[tuple[str, str, int]],
    clicks_named: bool,
    same: bool,
    backwards: bool,
) -> Iterator[str]:
    """Everything that is still to do, before the last button; what is yielded first counts as done."""
    fields = [element for element in view.of(*FIELDS) if not element.has("disabled")]
    for number, field in enumerate(reversed(fields) if backwards else fields):
        word = words[0 if same else number] if words and (same or number < len(words)) else ""
        if word and ("fill", word, number) not in done:
            done.add(("fill", word, number))
            yield f"fill {field.id} {word}"
    if not clicks_named:
        return
    for field in view.of(*LISTS):
        options = [option for option in field.options if option and names(task, option)]
        if options and ("select", options[0], 0) not in done:
            done.add(("select", options[0], 0))
            yield f"select {field.id} " + " ".join(json.dumps(option) for option in options)
    for element in sorted(view, key=lambda element: _rank(task, element)):
        if element.role not in (*FIELDS, *LISTS) and _rank(task, element)[0] < 3:
            key = ("click", element.name or element.rest, 0)
            if key not in done:
                done.add(key)
                yield f"click {element.id}"


def names(task: str, word: str) -> bool:
    """Return whether a word stands in the task, in any case."""
    return bool(re.search(rf"(?<!\w){re.escape(word.lower())}(?!\w)", task.lower()))


def _rank(task: str, element: PageElement) -> tuple[int, int]:
    """Order of what the task names: in quotes, by name, by kind; buttons that end a form last. 3: not at all."""
    kinds = [part for word in element.words if word.startswith(".") for part in word.strip(".").split(".")]
    if element.name and element.name in quoted(task, Elements([])):
        rank = 0
    elif element.name and names(task, element.name):
        rank = 1
    elif any(names(task, kind) for kind in (element.role, *kinds) if kind not in ("text", "button", "box")):
        rank = 2
    else:
        rank = 3
    ends = element.name.lower() in ("submit", "search", "login", "ok")
    return rank, int(ends)


def named(step: Step, rng: np.random.Generator) -> Generator[Action, Step, None]:
    """Click the first element that the task names."""
    while True:
        task, view = read(step)
        found = [element for element in view if element.name and names(task, element.name)]
        step = yield f"click {found[0].id}" if found else _last_button(task, view)


def _last_button(task: str, view: Elements) -> str:
    buttons = [button for button in view.of("button") if not button.has("disabled")]
    ends = [one for one in view if one.name.lower() in ("submit", "search", "login", "order!", "ok")]
    chosen = ends or buttons or view
    return f"click {chosen[-1].id}" if chosen else "wait"


def _some(view: list[PageElement], *roles: str) -> list[PageElement]:
    return [element for element in view if element.role in roles] or view


LAZY_POLICIES: Mapping[str, LazyPolicy] = {
    "click the first element": clicks(lambda view, rng: view[0]),
    "click the middle element": clicks(lambda view, rng: view[len(view) // 2]),
    "click the last element": clicks(lambda view, rng: view[-1]),
    "click the first button": clicks(lambda view, rng: _some(view, "button")[0]),
    "click the last button": clicks(lambda view, rng: _some(view, "button")[-1]),
    "click any element": clicks(lambda view, rng: view[int(rng.integers(len(view)))]),
    "click all in order": all_in_order(),
    "click all from the last": all_in_order(backwards=True),
    "click what the task names": named,
    "click all that the task names, then submit": fills(lambda task, view: [], clicks_named=True),
    "fill in the quoted words, then submit": fills(quoted),
    "fill in the first quoted word everywhere, then submit": fills(quoted, same=True),
    "fill in the task's numbers, then submit": fills(numbers),
    "fill in what follows the verb, then submit": fills(objects, same=True, backwards=True),
    "fill in the page's first text, then submit": fills(texts, same=True, backwards=True),
    "fill in the page's last text, then submit": fills(lambda task, view: texts(task, view)[::-1], same=True),
    "do all that the task names, then submit": fills(anything, clicks_named=True),
}
"""Lazy policies by what they do."""
