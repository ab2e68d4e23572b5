"""Connect Four on integers: a bit for each cell, columns side by side, an empty bit above each column.

    bit of (column c, row r from below) = c * (rows + 1) + r

The empty bits keep lines from running over a column's end. `search` is alpha-beta to a fixed depth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

WIN = 1000
"""A game won in n moves from here is worth WIN − n."""


@dataclass(frozen=True)
class Position:
    columns: int
    rows: int
    mine: int = 0
    """Stones of whoever is to move."""
    stones: int = 0
    """Stones of both."""

    @cached_property
    def bottom(self) -> int:
        return sum(1 << column * (self.rows + 1) for column in range(self.columns))

    @cached_property
    def board(self) -> int:
        return self.bottom * ((1 << self.rows) - 1)

    @property
    def count(self) -> int:
        return self.stones.bit_count()

    @property
    def playable(self) -> int:
        """The cell that a stone falls to in each column that has room."""
        return (self.stones + self.bottom) & self.board

    @property
    def theirs(self) -> int:
        return self.stones ^ self.mine

    def cell(self, column: int) -> int:
        """The playable cell of a column; 0 where it is full."""
        return self.playable & (((1 << self.rows) - 1) << column * (self.rows + 1))

    def put(self, cell: int) -> Position:
        return replace(self, mine=self.theirs, stones=self.stones | cell)

    def completes(self, stones: int) -> int:
        """The empty cells at which `stones` would get four in a row."""
        up, found = self.rows + 1, (stones << 1) & (stones << 2) & (stones << 3)
        for step in (up, up - 1, up + 1):
            pair = (stones << step) & (stones << 2 * step)
            found |= pair & (stones << 3 * step)
            found |= pair & (stones >> step)
            pair = (stones >> step) & (stones >> 2 * step)
            found |= pair & (stones >> 3 * step)
            found |= pair & (stones << step)
        return found & self.board & ~self.stones

    def won(self) -> bool:
        """Return whether the stone that was put last made four in a row."""
        stones = self.theirs
        for step in (1, self.rows + 1, self.rows, self.rows + 2):
            pair = stones & (stones >> step)
            if pair & (pair >> 2 * step):
                return True
        return False


def search(position: Position, depth: int, alpha: int = -WIN, beta: int = WIN) -> int:
    """Return what the position is worth to whoever is to move, `depth` moves ahead. Where nobody wins within them:
    how many more cells would win for it than for the other."""
    playable = position.playable
    if not playable:
        return 0
    if position.completes(position.mine) & playable:
        return WIN - 1
    threats = position.completes(position.theirs)
    forced = threats & playable
    if forced:
        if forced & (forced - 1):
            return 2 - WIN
        playable = forced
    if depth <= 1:
        return position.completes(position.mine).bit_count() - threats.bit_count()
    for cell in ordered(position, playable):
        worth = _nearer(-search(position.put(cell), depth - 1, -_farther(beta), -_farther(alpha)))
        if worth >= beta:
            return worth
        alpha = max(alpha, worth)
    return alpha


def rated(position: Position, depth: int) -> list[tuple[int, int]]:
    """(worth, cell) of every move, the middle columns' first."""
    found = []
    for cell in ordered(position, position.playable):
        after = position.put(cell)
        found.append((WIN if after.won() else _nearer(-search(after, depth - 1)), cell))
    return found


def ordered(position: Position, cells: int) -> list[int]:
    """The cells, one a column, from the middle outward."""
    middle = (position.columns - 1) / 2
    found = [position.cell(column) & cells for column in sorted(range(position.columns), key=lambda c: abs(c - middle))]
    return [cell for cell in found if cell]


def _nearer(worth: int) -> int:
    """The worth of a position one move earlier: wins and losses are a move further away."""
    return worth - 1 if worth > WIN // 2 else worth + 1 if worth < -WIN // 2 else worth


def _farther(worth: int) -> int:
    """The inverse of `_nearer`, for the window."""
    return worth + 1 if worth > WIN // 2 else worth - 1 if worth < -WIN // 2 else worth
