"""Text of what a desktop shows: one line an element, the ones that can be acted on with a number."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym_environments.backends.desktop.setup import SIZE

WINDOWS = {"frame": "window", "dialog": "dialog", "alert": "dialog", "file chooser": "dialog", "window": "popup"}
FURNITURE = {"filler", "panel", "scroll pane", "split pane", "viewport", "separator", "layered pane", "page tab list",
             "menu bar", "tool bar", "table", "tree table", "status bar", "scroll bar", "list", "grouping",
             "root pane", "redundant object", "table column header", "page tab"}  # fmt: skip
"""Roles that hold others; shown only where they have a name of their own that says more than their parts."""
SHORT = {"push button": "button", "toggle button": "button", "radio button": "radio", "check box": "checkbox",
         "menu item": "item", "check menu item": "item", "radio menu item": "item", "table cell": "cell",
         "list item": "item", "combo box": "combo", "tear off menu item": "item", "entry": "text"}  # fmt: skip
SPEECHLESS = {"text", "entry", "password text", "check box", "combo box", "push button", "toggle button", "spin button"}
"""Roles that are shown without a name too."""
WHEN = re.compile(
    r"\d{1,2} \w{3}( \d{4})?|Yesterday|(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|\W*\d{1,2}\W*[:\u2236]\W*\d{2}\W*"
)
"""A cell of a file dialog that says when a file was changed: it would be another one in every episode."""
LONGEST = 4000
"""Characters of one element's text that are shown."""


Box = tuple[int, int, int, int]
NOTHING = (0, 0, 0, 0)


@dataclass(frozen=True)
class Element:
    number: int
    role: str
    name: str
    text: str | None
    states: frozenset[str]
    box: Box
    """x, y, width, height of what is seen of it, in pixels of the screen."""
    depth: int
    caret: int | None = None
    marked: tuple[int, int] | None = None
    window: str = ""
    """Name of the window that it is in."""

    @property
    def centre(self) -> tuple[int, int]:
        x, y, width, height = self.box
        return x + width // 2, y + height // 2

    @property
    def label(self) -> str:
        """Return what a person would call it."""
        return self.name or (self.text or "").strip()

    def line(self, numbered: bool = True) -> str:
        what = f"{self.role} {quoted(self.name)}" if self.name else self.role
        states = [state for state in ("active", "focused", "selected", "checked") if state in self.states]
        if "sensitive" not in self.states and self.role not in ("window", "dialog", "popup"):
            states.append("disabled")
        if self.caret is not None and self.text is not None and "focused" in self.states:
            states.append("caret {}:{}".format(*place(self.text, self.caret)))
            if self.marked:
                states.append("marked {}:{} to {}:{}".format(*place(self.text, self.marked[0]),
                                                             *place(self.text, self.marked[1])))  # fmt: skip
        row = f"{'  ' * self.depth}{f'[{self.number}] ' if numbered else ''}{what}"
        if states:
            row += f" ({', '.join(states)})"
        return row + self._text()

    def _text(self) -> str:
        if self.text is None or (self.name and self.text.strip() == self.name):
            return ""
        shown = self.text if len(self.text) <= LONGEST else f"{self.text[:LONGEST]}..."
        if "\n" not in shown:
            return f": {quoted(shown)}"
        return ":\n" + "\n".join(f"{'  ' * self.depth}  | {line}" for line in shown.split("\n"))


@dataclass
class Numbers:
    """Gives elements their numbers: an element that is told by its window, role, name and place among its like keeps
    its number for the episode, though the toolkit may have made it anew."""

    _places: dict[tuple, int] = field(default_factory=dict)
    _shown: dict[int, int] = field(default_factory=dict)

    def elements(self, windows: list[dict[str, Any]], home: str, popups: Sequence[Box] = ()) -> list[Element]:
        """`popups`: where menus are, for GTK 2 says of a menu that was closed that it is still there."""
        windows = [prune(window, popups) for window in windows if window["role"] != "window" or really(window, popups)]
        return list(self._walk(windows, 0, 0, "", home, (0, 0, *SIZE)))

    def _walk(
        self, nodes: list[dict[str, Any]], parent: int, depth: int, window: str, home: str, view: Box
    ) -> Iterator[Element]:
        counts: Counter[tuple] = Counter()
        for node in nodes:
            role, name = node["role"], anonymous(node["name"].strip(), home)
            like = (parent, role, "" if role == "frame" else name or (node.get("text", "") if role == "icon" else ""))
            counts[like] += 1
            key = self._places.setdefault((*like, counts[like]), len(self._places) + 1)
            inside = name if role in WINDOWS and not depth else window
            part = role in WINDOWS and depth > 0  # a file dialog is a dialog within a dialog
            shown = is_shown(node) and not part and common(node["box"], view) is not None
            kids = self._walk(node["kids"], key, depth + shown, inside, home, visible_part(node, view))
            if role == "window":  # a menu of its own; without one it is some toolkit's helper
                kids = list(kids)
                shown = bool(kids)
            if shown:
                number = self._shown.setdefault(key, len(self._shown) + 1)
                yield Element(
                    number=number,
                    role=WINDOWS.get(role, SHORT.get(role, role)),
                    name=name,
                    text=anonymous(node["text"], home) if "text" in node else None,
                    states=frozenset(node["states"]) - ({"focused"} if is_guess(node) else set()),
                    box=common(node["box"], view) or view,
                    depth=depth,
                    caret=node.get("caret"),
                    marked=tuple(node["marked"]) if node.get("marked") else None,
                    window=inside,
                )
            yield from kids


def anonymous(text: str, home: str) -> str:
    """Leave out the name of this desktop's folder, in which home is: it is another one for every session."""
    return text.replace(home, "~").replace(home.rpartition("/")[0].rpartition("/")[2] or home, "desktop")


def is_guess(node: dict[str, Any]) -> bool:
    """GTK 2 says of a menu or button that it has the focus now too soon and now too late."""
    return node.get("gtk2", False) and node["role"] not in ("text", "icon")


def prune(node: dict[str, Any], popups: Sequence[Box]) -> dict[str, Any]:
    kids = [prune(kid, popups) for kid in node["kids"] if not kid["silent"] or really(kid, popups)]
    return {**node, "kids": kids}


def really(node: dict[str, Any], popups: Sequence[Box]) -> bool:
    x, y, width, height = node["box"]
    x, y = x + width // 2, y + height // 2
    return any(left <= x < left + across and top <= y < top + down for left, top, across, down in popups)


def common(box: Sequence[int], view: Box) -> Box | None:
    """The part of a box within another."""
    left, top = max(box[0], view[0]), max(box[1], view[1])
    right, bottom = min(box[0] + box[2], view[0] + view[2]), min(box[1] + box[3], view[1] + view[3])
    return (left, top, right - left, bottom - top) if right > left and bottom > top else None


def visible_part(node: dict[str, Any], view: Box) -> Box:
    """Return what is scrolled out of sight says that it shows all the same."""
    return (common(node["box"], view) or NOTHING) if node["role"] in ("scroll pane", "viewport") else view


def is_shown(node: dict[str, Any]) -> bool:
    role, name = node["role"], node["name"].strip()
    if role in FURNITURE or role in ("image", "animation"):
        return False
    if role == "table cell":
        return bool(name) and not node["kids"] and not WHEN.fullmatch(name)
    return role in WINDOWS or role in SPEECHLESS or bool(name) or (role == "icon" and bool(node.get("text")))


def place(text: str, offset: int) -> tuple[int, int]:
    """Line and column, from 1."""
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def quoted(text: str) -> str:
    return '"' + text.replace("\n", "\\n") + '"'


def find(elements: list[Element], role: str, label: str) -> Element | None:
    """The last element of a role and label: what opened last is last."""
    found = [one for one in elements if one.role == role and one.label == label]
    return found[-1] if found else None
