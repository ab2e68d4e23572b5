"""The accessibility tree's lines as elements, for those who act on what the agent reads."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

_LINE = re.compile(r"^( *)(?:\[(\d+)\] )?(\S+)(.*)$")
_STRING = r'"(?:[^"\\]|\\.)*"'


@dataclass(frozen=True)
class PageElement:
    id: int
    """0 for plain text, which cannot be acted on."""
    depth: int
    role: str
    name: str
    rest: str
    """Text after the name: states, classes, colour, place."""

    def has(self, word: str) -> bool:
        """Return whether a state ("checked") or class (".star") is among its words."""
        return word in self.words or any(part.startswith(".") and word[1:] in part.split(".") for part in self.words)

    @property
    def words(self) -> list[str]:
        return re.sub(_STRING, "", self.rest).split()

    @property
    def value(self) -> str:
        """Return what a field holds; empty where there is no value."""
        found = re.search(rf"value=({_STRING}|\S+)", self.rest)
        return "" if found is None else json.loads(found[1]) if found[1].startswith('"') else found[1]

    @property
    def options(self) -> list[str]:
        return [json.loads(text) for text in re.findall(rf"(?:option|selected) ({_STRING})", self.rest)]

    @property
    def selected(self) -> list[str]:
        return [json.loads(text) for text in re.findall(rf"selected ({_STRING})", self.rest)]

    @property
    def colour(self) -> tuple[int, int, int] | None:
        found = re.search(r"#([0-9a-f]{6})\b", self.rest)
        return None if found is None else tuple(bytes.fromhex(found[1]))  # type: ignore[return-value]

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Middle x and y, width and height; zeros where they are not said."""
        found = re.search(r"(\d+)x(\d+) at (-?\d+),(-?\d+)", self.rest)
        return (0, 0, 0, 0) if found is None else (int(found[3]), int(found[4]), int(found[1]), int(found[2]))


class Elements(list[PageElement]):
    """The lines of a tree, in their order, and the actions that led there."""

    taken: Sequence[str] = ()

    def __init__(self, tree: str | list[PageElement], taken: Sequence[str] = ()) -> None:
        self.taken = taken
        super().__init__(
            tree if isinstance(tree, list) else (_read(line) for line in tree.splitlines() if line.strip())
        )

    def of(self, *roles: str) -> Elements:
        return Elements([element for element in self if element.role in roles])

    def named(self, name: str, *roles: str) -> PageElement | None:
        """The first that can be acted on and is called so, regardless of case when none has the very name."""
        some = [element for element in self if element.id and (not roles or element.role in roles)]
        exact = [element for element in some if element.name == name]
        alike = [element for element in some if element.name.lower() == name.lower()]
        return (exact or alike or [None])[0]

    def after(self, element: PageElement) -> Elements:
        return Elements(self[self.index(element) + 1 :])

    def before(self, element: PageElement) -> Elements:
        return Elements(self[: self.index(element)])

    def under(self, element: PageElement) -> Elements:
        """Its children and theirs."""
        found: list[PageElement] = []
        for other in self.after(element):
            if other.depth <= element.depth:
                break
            found.append(other)
        return Elements(found)

    def focused(self) -> PageElement | None:
        return next((element for element in self if element.has("focused")), None)


def _read(line: str) -> PageElement:
    found = _LINE.match(line)
    assert found is not None, line
    spaces, number, role, rest = found.groups()
    name = re.match(rf" ({_STRING})", rest)
    text = json.loads(name[1]) if name else ""
    return PageElement(int(number or 0), len(spaces) // 2, role, text, rest[name.end() if name else 0 :].strip())
