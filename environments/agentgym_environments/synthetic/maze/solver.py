"""The solver where the walls are not shown: it walks to the nearest cell that it does not know."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from agentgym_environments.synthetic.maze.plan import Cell, Plan, beyond


def explore(plan: Plan, visited: Collection[Cell], here: Cell, compass: bool) -> str:
    """The first way on a walk over cells seen to one that is not: the nearest, or with a compass the one for which
    steps to it and distance from there to the exit (walls forgotten) are least together.
    """
    first: dict[Cell, str] = {}
    steps, queue = {here: 0}, deque([here])
    best: tuple[int, int] | None = None
    chosen = ""
    while queue:
        at = queue.popleft()
        for way in plan.ways(at):
            cell = beyond(at, way)
            if cell in steps:
                continue
            steps[cell], first[cell] = steps[at] + 1, first.get(at, way)
            if cell in visited:
                queue.append(cell)
                continue
            far = abs(cell[0] - plan.exit[0]) + abs(cell[1] - plan.exit[1]) if compass else 0
            if best is None or (steps[cell] + far, far) < best:
                best, chosen = (steps[cell] + far, far), first[cell]
    return chosen


def walk(plan: Plan, compass: bool, most: int) -> list[str]:
    """All that the explorer does from the start to the exit, cut after `most` steps."""
    here, visited, ways = plan.start, {plan.start}, []
    while here != plan.exit and len(ways) < most:
        ways.append(explore(plan, visited, here, compass))
        here = beyond(here, ways[-1])
        visited.add(here)
    return ways
