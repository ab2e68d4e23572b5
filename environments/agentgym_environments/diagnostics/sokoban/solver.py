"""The solver: A* over moves, with squares from which no box ever reaches a goal left out."""

from __future__ import annotations

import heapq
from functools import lru_cache

from agentgym_environments.diagnostics.sokoban.level import MOVES, SokobanLevel, Square, ahead


def solve(level: SokobanLevel) -> list[str] | None:
    """A shortest list of moves that solves the level; None when there is none."""
    pushes = push_distances(level.floor, level.goals)

    def bound(boxes: frozenset[Square]) -> int:
        return sum(pushes.get(box, 10**6) for box in boxes)

    start = (level.player, level.boxes)
    came: dict[tuple, tuple | None] = {start: None}
    cost = {start: 0}
    queue = [(bound(level.boxes), 0, 0, start)]
    counter = 0
    while queue:
        _, _, _, node = heapq.heappop(queue)
        player, boxes = node
        if boxes == level.goals:
            return _way_back(came, node)
        for way in MOVES:
            square = ahead(player, way)
            pushed = boxes
            if square in boxes:
                beyond = ahead(square, way)
                if beyond not in pushes or beyond in boxes:
                    continue
                pushed = boxes - {square} | {beyond}
            elif square not in level.floor:
                continue
            following, steps = (square, pushed), cost[node] + 1
            if steps < cost.get(following, 10**6):
                cost[following], came[following] = steps, (node, way)
                counter += 1
                heapq.heappush(queue, (steps + bound(pushed), -steps, counter, following))
    return None


@lru_cache(maxsize=1024)
def push_distances(floor: frozenset[Square], goals: frozenset[Square]) -> dict[Square, int]:
    """Pushes that a lone box needs from a square to the nearest goal; squares that reach none are left out."""
    found = {goal: 0 for goal in sorted(goals)}
    edge = list(found)
    while edge:
        nearer, edge = edge, []
        for square in nearer:
            for way in MOVES:
                before = ahead(square, way)
                if before in floor and ahead(before, way) in floor and before not in found:
                    found[before] = found[square] + 1
                    edge.append(before)
    return found


def _way_back(came: dict, node: tuple) -> list[str]:
    moves = []
    while came[node] is not None:
        node, way = came[node]
        moves.append(way)
    return moves[::-1]
