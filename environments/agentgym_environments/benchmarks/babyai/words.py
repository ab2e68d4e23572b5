"""Words for what stands in the view: where from the agent, its colour, its kind."""

from __future__ import annotations

from typing import Any

HERE = (3, 6)
"""Column and row of the agent in its view of 7 by 7; ahead is up."""

SHOWN = ("door", "key", "ball", "box", "goal", "lava")


def view(grid: Any, visible: Any, carrying: Any) -> str:
    """Sentences about a MiniGrid view: `grid` of 7 by 7 cells and `visible`, bool[7, 7], by [column, row]."""
    things = []
    for row in range(7):
        for column in range(7):
            cell = grid.get(column, row)
            if cell is not None and visible[column, row] and (column, row) != HERE and cell.type in SHOWN:
                things.append((HERE[1] - row, column - HERE[0], name(cell)))
    lines = [f"a {what} {where(ahead, right)}" for ahead, right, what in sorted(things, key=nearness)]
    held = f"you carry a {name(carrying)}" if carrying else "you carry nothing"
    return "\n".join([*lines, f"wall {clear(grid, visible)}", held])


def nearness(thing: tuple[int, int, str]) -> tuple:
    ahead, right, what = thing
    return ahead + abs(right), right, what


def where(ahead: int, right: int) -> str:
    """`2 ahead, 1 left`"""
    side = f"{abs(right)} {'left' if right < 0 else 'right'}"
    return ", ".join([*([f"{ahead} ahead"] if ahead else []), *([side] if right else [])])


def name(cell: Any) -> str:
    """`red ball`, `locked blue door`"""
    if cell.type != "door":
        return f"{cell.color} {cell.type}" if cell.type not in ("goal", "lava") else cell.type
    state = "open" if cell.is_open else "locked" if cell.is_locked else "closed"
    return f"{state} {cell.color} door"


def clear(grid: Any, visible: Any) -> str:
    """Return how far it is to the wall ahead, to the left and to the right, as far as can be seen."""
    column, row = HERE

    def steps(right: int, ahead: int) -> str | None:
        for count in range(1, 7):
            x, y = column + right * count, row - ahead * count
            if not (0 <= x < 7 and 0 <= y < 7) or not visible[x, y]:
                return None
            cell = grid.get(x, y)
            if cell is not None and cell.type == "wall":
                return str(count)
        return None

    found = [(steps(0, 1), "ahead"), (steps(-1, 0), "left"), (steps(1, 0), "right")]
    return ", ".join(f"{count} {side}" for count, side in found if count) or "not in sight"
