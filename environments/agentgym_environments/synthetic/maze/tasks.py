"""Mazes in which every cell can be reached: a random tree of passages and a few more."""

from __future__ import annotations

from functools import lru_cache
from random import Random

from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.synthetic.maze.plan import WAYS, Cell, Plan, beyond
from agentgym_environments.synthetic.maze.solver import walk


@lru_cache(maxsize=4096)
def plan(size: int, loops: int, view: str, turns: int, split: str, task: int) -> Plan:
    """Task `task` of `split`: the start is at least 3/2 `size` steps from the exit, and whoever sees only what `view`
    shows can be out within `turns`.
    """
    random = task_random("maze", size, loops, view, split, task)
    while True:
        made = _attempt(random, size, loops)
        if made.to_exit[made.start] < 3 * size // 2 or split_of(made.draw(made.start)) != split:
            continue
        if view == "map":
            if made.to_exit[made.start] <= turns:
                return made
        elif len(walk(made, view == "compass", turns + 1)) <= turns:
            return made


def _attempt(random: Random, size: int, loops: int) -> Plan:
    cells = [(x, y) for y in range(size) for x in range(size)]
    pairs: set[tuple[Cell, Cell]] = set()
    path, inside = [cells[0]], set(cells)
    unreached = inside - {cells[0]}
    while path:
        ahead = [cell for way in WAYS if (cell := beyond(path[-1], way)) in unreached]
        if not ahead:
            path.pop()
            continue
        cell = random.choice(ahead)
        pairs |= {(path[-1], cell), (cell, path[-1])}
        unreached.remove(cell)
        path.append(cell)
    walls = [
        (cell, other)
        for cell in cells
        for way in ("east", "south")
        if (other := beyond(cell, way)) in inside and (cell, other) not in pairs
    ]
    for cell, other in random.sample(walls, min(loops, len(walls))):
        pairs |= {(cell, other), (other, cell)}
    start, exit = random.sample(cells, 2)
    return Plan(size, frozenset(pairs), start, exit)
