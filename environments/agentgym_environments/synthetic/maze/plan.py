"""A maze. Cells are (x, y), x grows east, y south; `doors` holds every open passage in both directions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property

Cell = tuple[int, int]

WAYS = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}


def beyond(cell: Cell, way: str) -> Cell:
    dx, dy = WAYS[way]
    return cell[0] + dx, cell[1] + dy


@dataclass(frozen=True)
class Plan:
    size: int
    doors: frozenset[tuple[Cell, Cell]]
    start: Cell
    exit: Cell

    def ways(self, cell: Cell) -> list[str]:
        """The open ways out of a cell, north first, clockwise."""
        return [way for way in WAYS if (cell, beyond(cell, way)) in self.doors]

    @cached_property
    def to_exit(self) -> dict[Cell, int]:
        """Steps from every cell to the exit."""
        found, queue = {self.exit: 0}, deque([self.exit])
        while queue:
            here = queue.popleft()
            for way in self.ways(here):
                if (cell := beyond(here, way)) not in found:
                    found[cell] = found[here] + 1
                    queue.append(cell)
        return found

    def draw(self, you: Cell) -> str:
        """Two characters a cell and a wall around: # wall, _ floor, @ you, X the exit."""
        at = (2 * you[1] + 1) * (2 * self.size + 2) + 2 * you[0] + 1
        return f"{self._empty[:at]}@{self._empty[at + 1 :]}"

    @cached_property
    def _empty(self) -> str:
        side = 2 * self.size + 1
        rows = [["#"] * side for _ in range(side)]
        for (x, y), (beside_x, beside_y) in self.doors:
            rows[2 * y + 1][2 * x + 1] = "_"
            rows[y + beside_y + 1][x + beside_x + 1] = "_"
        rows[2 * self.exit[1] + 1][2 * self.exit[0] + 1] = "X"
        return "\n".join(map("".join, rows))
