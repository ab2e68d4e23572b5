"""The words of the hands: what an agent may say, parsed, and done on a desktop."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from agentgym_environments.backends.desktop.desktop import Desktop, pause
from agentgym_environments.backends.desktop.setup import SIZE
from agentgym_environments.backends.wording import unlabelled

GRAMMAR = """click N | click X Y | double N | right N | drag N to M | drag X Y to X Y | scroll N up|down [TIMES] \
| type TEXT | press KEY | wait"""

KEYS = {
    "ctrl": "Control_L",
    "control": "Control_L",
    "alt": "Alt_L",
    "shift": "Shift_L",
    "enter": "Return",
    "return": "Return",
    "esc": "Escape",
    "escape": "Escape",
    "tab": "Tab",
    "space": "space",
    "backspace": "BackSpace",
    "delete": "Delete",
    "del": "Delete",
    "insert": "Insert",
    "home": "Home",
    "end": "End",
    "pageup": "Prior",
    "pagedown": "Next",
    "up": "Up",
    "down": "Down",
    "left": "Left",
    "right": "Right",
    "menu": "Menu",
    **{f"f{number}": f"F{number}" for number in range(1, 13)},
}
MODIFIERS = {"Control_L", "Alt_L", "Shift_L"}
WHEEL = {"up": 4, "down": 5, "left": 6, "right": 7}
BUTTONS = {"click": (1, 1), "double": (1, 2), "right": (3, 1)}
"""Verb: mouse button, times."""
MOST_TURNS_OF_WHEEL = 30
LONGEST_TYPED = 4000

Point = tuple[int, int]
Where = Callable[[int], Point | None]
"""The centre of the element of a number; None where there is none."""


@dataclass(frozen=True)
class Act:
    verb: str
    points: tuple[Point, ...] = ()
    keys: tuple[str, ...] = ()
    text: str = ""
    way: str = ""
    times: int = 1


def parse(action: str, where: Where) -> Act | str:
    """Return what is to be done, if need be by what follows "Action:", or a sentence that says why nothing can be."""
    act = _parse(action, where)
    return _parse(unlabelled(action), where) if isinstance(act, str) else act


def _parse(action: str, where: Where) -> Act | str:
    verb, _, rest = action.strip().partition(" ")
    verb = verb.lower()
    if verb == "type":
        return _typing(action.lstrip()[len("type") :])
    if verb == "press":
        return _pressing(rest)
    if verb == "wait" and not rest.strip():
        return Act("wait")
    words = rest.lower().replace(",", " ").split()
    if verb in BUTTONS:
        return _at(verb, words, where)
    if verb == "drag":
        ends = " ".join(words).split(" to ")
        places = [_point(end.split(), where) for end in ends]
        if len(places) != 2:
            return "say drag N to M, or drag X Y to X Y"
        wrong = [place for place in places if isinstance(place, str)]
        return wrong[0] if wrong else Act("drag", tuple(place for place in places if not isinstance(place, str)))
    if verb == "scroll":
        return _scrolling(words, where)
    return f"not an action; say {GRAMMAR}"


def _at(verb: str, words: list[str], where: Where) -> Act | str:
    point = _point(words, where)
    return point if isinstance(point, str) else Act(verb, (point,))


def _point(words: list[str], where: Where) -> Point | str:
    if not words or len(words) > 2 or not all(re.fullmatch(r"\[?\d{1,5}\]?", word) for word in words):
        return "say the number of an element, or two coordinates"
    numbers = [int(word.strip("[]")) for word in words]
    if len(numbers) == 1:
        point = where(numbers[0])
        if point is None:
            return f"there is no element [{numbers[0]}] on the screen"
        return min(max(point[0], 0), SIZE[0] - 1), min(max(point[1], 0), SIZE[1] - 1)
    if numbers[0] >= SIZE[0] or numbers[1] >= SIZE[1]:
        return f"the screen is {SIZE[0]} by {SIZE[1]}"
    return numbers[0], numbers[1]


def _scrolling(words: list[str], where: Where) -> Act | str:
    ways = [number for number, word in enumerate(words) if word in WHEEL]
    if len(ways) != 1:
        return "say scroll N up or scroll N down, and how many times"
    times = words[ways[0] + 1 :] or ["3"]
    if len(times) != 1 or not times[0].isdigit() or not 1 <= int(times[0]) <= MOST_TURNS_OF_WHEEL:
        return f"scroll 1 to {MOST_TURNS_OF_WHEEL} times"
    point = _point(words[: ways[0]], where)
    return point if isinstance(point, str) else Act("scroll", (point,), way=words[ways[0]], times=int(times[0]))


def _typing(rest: str) -> Act | str:
    text = rest.removeprefix(" ").rstrip("\r\n")
    text = re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t", "\\": "\\"}.get(match[1], match[0]), text)
    if not text or len(text) > LONGEST_TYPED:
        return f"say what to type, at most {LONGEST_TYPED} characters"
    for character in text:
        if not (" " <= character <= "~" or character in "\n\t"):
            return f"this keyboard has no {character!r}"
    return Act("type", text=text)


def _pressing(rest: str) -> Act | str:
    names = rest.strip().replace("++", "+plus").replace("plus", "\0").split("+")
    keys = []
    for name in names:
        name = name.strip().replace("\0", "+")
        key = KEYS.get(name.lower()) or (name if len(name) == 1 and "!" <= name <= "~" else None)
        if key is None:
            return f"there is no key {name!r}; keys are letters, digits, signs and {', '.join(KEYS)}"
        keys.append(key.lower() if len(key) == 1 and len(names) > 1 else key)
    if any(key not in MODIFIERS for key in keys[:-1]) or len(keys) > 4:
        return "press one key, with ctrl, alt or shift before it: press ctrl+s"
    return Act("press", keys=tuple(keys))


def do(act: Act, desktop: Desktop, again_s: float = 0.0, apart_s: float = 0.0) -> None:
    """`again_s`: between two presses of one key, at least; `apart_s`: between this use of the mouse and the last."""
    if act.points:
        desktop.spare(*act.points[-1], apart_s)
    if act.verb in BUTTONS:
        button, times = BUTTONS[act.verb]
        desktop.move(*act.points[0])
        for _ in range(times):
            desktop.button(button, True)
            desktop.button(button, False)
    elif act.verb == "drag":
        _drag(act, desktop)
    elif act.verb == "scroll":
        desktop.move(*act.points[0])
        for _ in range(act.times):
            desktop.button(WHEEL[act.way], True)
            desktop.button(WHEEL[act.way], False)
    elif act.verb == "type":
        for character in act.text:
            desktop.type(character, again_s)
    elif act.verb == "press":
        _press(act.keys, desktop, again_s)
    elif act.verb == "wait":
        pause(0.5)
    desktop.sync()


def _drag(act: Act, desktop: Desktop) -> None:
    """Toolkits tell a drag from a click by the way between, seen in several steps."""
    (x, y), (to_x, to_y) = act.points
    desktop.move(x, y)
    desktop.button(1, True)
    for step in range(1, 9):
        desktop.move(x + (to_x - x) * step // 8, y + (to_y - y) * step // 8)
        desktop.sync()
        pause(0.02)
    desktop.button(1, False)


def _press(keys: tuple[str, ...], desktop: Desktop, again_s: float) -> None:
    *modifiers, key = keys
    for name in modifiers:
        desktop.key(name, True)
    if len(key) == 1:
        desktop.type(key, again_s)
    else:
        desktop.key(key, True)
        desktop.key(key, False)
    for name in reversed(modifiers):
        desktop.key(name, False)
