"""An explorer of a NetHack level: walks to the staircase when it is seen, else to where the map may go on."""

from __future__ import annotations

from collections import deque
from typing import Any

STEPS = {
    "north": (0, -1), "south": (0, 1), "east": (1, 0), "west": (-1, 0),
    "northeast": (1, -1), "northwest": (-1, -1), "southeast": (1, 1), "southwest": (-1, 1),
}  # fmt: skip

FLOOR = frozenset(map(ord, '.#<>{_$%!?/="+)[(*^@dfu'))
"""Characters of squares that can as a rule be walked on; pets give way."""

DOORS = (2372, 2375)
"""NetHack's first and last glyph of a door, open or closed."""

Square = tuple[int, int]


class Explorer:
    """Remembers a level's doors, the squares stood on, and the steps that led nowhere. Squares are (x, y)."""

    def __init__(self) -> None:
        self.doors: set[Square] = set()
        self.stood: dict[Square, int] = {}
        self.stuck: set[tuple[Square, str]] = set()
        self.here: Square = (0, 0)

    def see(self, view: dict[str, Any], action: str = "") -> None:
        """Return what the level looks like after `action`."""
        before, self.here = self.here, (int(view["blstats"][0]), int(view["blstats"][1]))
        if action in STEPS and before == self.here:
            self.stuck.add((before, action))
        self.stood[self.here] = self.stood.get(self.here, 0) + 1
        glyphs = view["glyphs"]
        rows, columns = ((glyphs >= DOORS[0]) & (glyphs <= DOORS[1])).nonzero()
        self.doors.update((int(x), int(y)) for y, x in zip(rows, columns))

    def next(self, view: dict[str, Any]) -> str:
        """The first word of a shortest way to a staircase down, or to a square beside what has not been seen."""
        ways = self._ways(view)
        rows, columns = (view["chars"] == ord(">")).nonzero()
        stairs = [(int(x), int(y)) for y, x in zip(rows, columns)]
        goals = [square for square in stairs if square in ways] or self._edges(view["chars"], ways)
        if goals:
            return ways[min((ways[square][0], square) for square in goals)[1]][1]
        ends = [square for square in ways if self._closed_in(view["chars"], square)]
        if not ends:
            return "search"
        # A dead end hides a way on: search where that has been done least.
        end = min((self.stood.get(square, 0) // 12, ways[square][0], square) for square in ends)[2]
        return ways[end][1]

    def _ways(self, view: dict[str, Any]) -> dict[Square, tuple[int, str]]:
        """Breadth first over what is known: (steps, first word) to every square that can be reached."""
        chars = view["chars"]
        found: dict[Square, tuple[int, str]] = {self.here: (0, "search")}
        queue = deque([self.here])
        while queue:
            here = queue.popleft()
            steps, first = found[here]
            for word, (right, below) in STEPS.items():
                to = here[0] + right, here[1] + below
                if to in found or (here, word) in self.stuck or not self._walkable(chars, to):
                    continue
                if right and below and (here in self.doors or to in self.doors):
                    continue  # nobody walks through a door diagonally
                found[to] = (steps + 1, word if here == self.here else first)
                queue.append(to)
        return found

    def _walkable(self, chars: Any, square: Square) -> bool:
        x, y = square
        return 0 < x < 79 and 0 < y < 21 and (square in self.doors or int(chars[y, x]) in FLOOR)

    def _edges(self, chars: Any, ways: dict[Square, tuple[int, str]]) -> list[Square]:
        return [square for square in ways if square not in self.stood and self._unseen(chars, square)]

    def _unseen(self, chars: Any, square: Square) -> bool:
        return any(0 < x < 79 and 0 < y < 21 and int(chars[y, x]) == 32 for x, y in _around(square))

    def _closed_in(self, chars: Any, square: Square) -> bool:
        """The end of a corridor, or a square along a wall."""
        x, y = square
        ways = sum(self._walkable(chars, to) for to in _around(square))
        return ways <= (1 if int(chars[y, x]) == ord("#") else 5)


def _around(square: Square) -> list[Square]:
    return [(square[0] + right, square[1] + below) for right, below in STEPS.values()]
