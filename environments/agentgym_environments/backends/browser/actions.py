"""Actions of web environments: what may be said, and how it reaches the page, by a real mouse and keyboard."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym_environments.backends.wording import unlabelled

if TYPE_CHECKING:
    from playwright.async_api import Page

GRAMMAR = """
click ID, hover ID: an element by its number, or a point as X,Y
fill ID TEXT: replace what a field holds; type TEXT: type where the focus is
select ID OPTION: choose in a list (several: "A" "B")
press KEY: Enter, Tab, ArrowDown, a, Control+a, ...
scroll up|down|left|right [ID [PIXELS]]: an element, or 0 for the page
drag FROM TO: each an ID or X,Y; more points draw a path
back, wait""".strip()

Target = int | tuple[float, float]
"""An element's id, or a point in pixels of the window."""

WAYS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
SCROLL = 100.0
"""Pixels, when nothing else is said."""
LONGEST = 2000
"""Characters of text that one action may type."""


@dataclass(frozen=True)
class Action:
    verb: str
    targets: tuple[Target, ...] = ()
    texts: tuple[str, ...] = ()
    pixels: float = 0.0


class NotPossible(Exception):
    """The page has no such element or point, or the element cannot do this; says which."""


def parse(command: str) -> Action | None:
    """The action that a line of text names, or what follows its "Action:"; None when it is none. Only the verb is read
    without regard to case."""
    return _parse(command) or _parse(unlabelled(command))


def _parse(command: str) -> Action | None:
    verb, _, rest = command.strip().partition(" ")
    verb, rest = verb.lower(), rest.strip()
    if verb in ("back", "wait"):
        return None if rest else Action(verb)
    if verb in ("click", "hover"):
        targets = _targets(rest)
        return Action(verb, targets) if len(targets) == 1 else None
    if verb == "drag":
        targets = _targets(rest)
        return Action(verb, targets) if len(targets) >= 2 else None
    if verb in ("fill", "select"):
        first, _, text = rest.partition(" ")
        targets, texts = _targets(first), _texts(text.strip(), several=verb == "select")
        known = len(targets) == 1 and isinstance(targets[0], int) and texts
        return Action(verb, targets, texts) if known else None
    if verb == "type":
        return Action(verb, texts=_texts(rest, several=False)) if rest else None
    if verb == "press":
        return Action(verb, texts=(rest,)) if rest and " " not in rest else None
    return _scroll(rest) if verb == "scroll" else None


def _targets(text: str) -> tuple[Target, ...]:
    """Every target of a line; empty when one of its words is none."""
    found: list[Target] = []
    for word in re.sub(r"\s*,\s*", ",", text).split():
        if match := re.fullmatch(r"\[?(\d{1,6})\]?", word):
            found.append(int(match[1]))
        elif match := re.fullmatch(r"\(?(\d{1,5}(?:\.\d{1,3})?),(\d{1,5}(?:\.\d{1,3})?)\)?", word):
            found.append((float(match[1]), float(match[2])))
        else:
            return ()
    return tuple(found)


def _texts(text: str, *, several: bool) -> tuple[str, ...]:
    """Quoted strings, or the whole line as it stands; empty when it is too long or, of several, one is not quoted."""
    if len(text) > LONGEST:
        return ()
    quoted = re.findall(r'"(?:[^"\\]|\\.)*"', text)
    only = re.sub(r"\s+", "", text.rstrip(" .")) == re.sub(r"\s+", "", "".join(quoted))
    if quoted and only and (several or len(quoted) == 1):
        try:
            return tuple(json.loads(one) for one in quoted)
        except ValueError:
            return (text,)
    return (text,) if text or not several else ()


def _scroll(rest: str) -> Action | None:
    words = rest.lower().split()
    ways = [word for word in words if word in WAYS]
    numbers = [int(word.strip("[]")) for word in words if re.fullmatch(r"\[?\d{1,6}\]?", word)]
    if len(ways) != 1 or len(numbers) != len(words) - 1 or len(numbers) > 2:
        return None
    return Action("scroll", tuple(numbers[:1]), (ways[0],), float(numbers[1]) if len(numbers) == 2 else SCROLL)


async def perform(page: Page, action: Action) -> None:
    """Do it with the page's mouse and keyboard. Raises NotPossible, in which case nothing was done."""
    from playwright.async_api import Error

    if action.verb == "back":
        await page.go_back()
    elif action.verb == "type":
        await page.keyboard.type(action.texts[0])
    elif action.verb == "press":
        try:
            await page.keyboard.press(action.texts[0])
        except Error as error:
            if "Unknown key" not in error.message:
                raise
            raise NotPossible(f"there is no key {action.texts[0]!r}") from error
    elif action.verb == "scroll":
        across, down = WAYS[action.texts[0]]
        by = [across * action.pixels, down * action.pixels]
        await _ask(page, "scroll", [*(action.targets or (0,)), *by])
    elif action.verb == "fill":
        done = await _ask(page, "ready", [action.targets[0], action.texts[0]])
        if not done:
            await (page.keyboard.insert_text(action.texts[0]) if action.texts[0] else page.keyboard.press("Delete"))
    elif action.verb == "select":
        await _ask(page, "select", [action.targets[0], action.texts])
    elif action.verb != "wait":
        await _point(page, action)


async def _point(page: Page, action: Action) -> None:
    """Do an action that only the mouse does."""
    places = [await _place(page, target) for target in action.targets]
    if action.verb == "click":
        await page.mouse.click(*places[0])
        return
    await page.mouse.move(*places[0])
    if action.verb == "drag":
        await page.mouse.down()
        for place in places[1:]:
            await page.mouse.move(*place, steps=5 if len(places) == 2 else 2)
        await page.mouse.up()


async def _place(page: Page, target: Target) -> tuple[float, float]:
    """A point of the window."""
    x, y = await _ask(page, "point", [target]) if isinstance(target, int) else target
    size = page.viewport_size
    if size is None or not (0 <= x < size["width"] and 0 <= y < size["height"]):
        raise NotPossible(f"{x:g},{y:g} is outside the window")
    return x, y


async def _ask(page: Page, name: str, given: list) -> list[float]:
    """Call one of the functions of observe.js, which answer with a sentence when they cannot."""
    answer = await page.evaluate("([name, given]) => __seen[name](...given)", [name, given])
    if isinstance(answer, str):
        raise NotPossible(answer)
    return answer
