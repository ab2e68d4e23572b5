"""A level and its rules. Squares are (x, y), x grows right, y down; everything outside `floor` is wall."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

Square = tuple[int, int]

MOVES = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}


@dataclass(frozen=True)
class SokobanLevel:
    floor: frozenset[Square]
    goals: frozenset[Square]
    boxes: frozenset[Square]
    player: Square

    @property
    def solved(self) -> bool:
        return self.boxes == self.goals

    def move(self, way: str) -> SokobanLevel:
        """The player walks, or pushes one box onto a free square; the same level when neither is possible."""
        square = ahead(self.player, way)
        if square in self.boxes:
            beyond = ahead(square, way)
            if beyond not in self.floor or beyond in self.boxes:
                return self
            return replace(self, player=square, boxes=self.boxes - {square} | {beyond})
        return replace(self, player=square) if square in self.floor else self

    def draw(self) -> str:
        """The level as text, with a wall around it."""
        width, height = (max(axis) + 2 for axis in zip(*self.floor))
        return "\n".join("".join(self._mark((x, y)) for x in range(width)) for y in range(height))

    def _mark(self, square: Square) -> str:
        if square not in self.floor:
            return "#"
        goal = square in self.goals
        if square == self.player:
            return "+" if goal else "@"
        if square in self.boxes:
            return "*" if goal else "$"
        return "." if goal else "_"

    @classmethod
    def parse(cls, drawing: str) -> SokobanLevel:
        """The level that `draw` drew."""
        marks = {(x, y): mark for y, line in enumerate(drawing.splitlines()) for x, mark in enumerate(line)}

        def where(kinds: str) -> frozenset[Square]:
            return frozenset(square for square, mark in marks.items() if mark in kinds)

        return cls(where("_.@+$*"), where(".+*"), where("$*"), next(iter(where("@+"))))


def ahead(square: Square, way: str) -> Square:
    dx, dy = MOVES[way]
    return square[0] + dx, square[1] + dy


def distances(start: Square, free: frozenset[Square] | set[Square]) -> dict[Square, int]:
    """Walking distance to every square that can be reached over `free`."""
    found, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        for way in MOVES:
            square = ahead(here, way)
            if square in free and square not in found:
                found[square] = found[here] + 1
                queue.append(square)
    return found
