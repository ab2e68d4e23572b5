"""Levels that can be solved because they were played backwards: boxes start on their goals and are pulled away."""

from __future__ import annotations

from functools import lru_cache
from random import Random

from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.diagnostics.sokoban.level import MOVES, SokobanLevel, Square, ahead, distances


@lru_cache(maxsize=4096)
def level(size: int, boxes: int, longest: int, split: str, task: int) -> SokobanLevel:
    """Task `task` of `split`: a floor of size by size with some inner walls, solved in at most `longest` moves."""
    random = task_random("sokoban", size, boxes, longest, split, task)
    while True:
        made = _attempt(random, size, boxes, longest)
        if made is not None and split_of(made.draw()) == split:
            return made


def _attempt(random: Random, size: int, boxes: int, longest: int) -> SokobanLevel | None:
    squares = [(x, y) for x in range(1, size + 1) for y in range(1, size + 1)]
    walls = random.sample(squares, random.randint(1, size))
    floor = frozenset(squares) - set(walls)
    if len(floor) != len(distances(min(floor), floor)):
        return None  # in two parts
    if any(len({square[axis] for square in floor}) < size for axis in (0, 1)):
        return None  # smaller than it should be
    *goals, player = random.sample(sorted(floor), boxes + 1)
    return _pull(random, SokobanLevel(floor, frozenset(goals), frozenset(goals), player), longest)


def _pull(random: Random, level: SokobanLevel, longest: int) -> SokobanLevel | None:
    """Pull boxes until the moves run out; None unless every box ends well away from all goals."""
    moves, boxes, player = 0, level.boxes, level.player
    while True:
        walk = distances(player, level.floor - boxes)
        pulls = [pull for box in boxes for way in MOVES if (pull := _possible(box, way, level.floor - boxes, walk))]
        if not pulls:
            return None
        box, stand, end = random.choice(sorted(pulls))
        if moves + walk[stand] + 1 > longest:
            break
        moves += walk[stand] + 1
        boxes, player = boxes - {box} | {stand}, end
    if boxes & level.goals or (len(boxes) == 1 and _near(boxes, level.goals)):
        return None
    ways = [square for square, steps in walk.items() if moves + steps <= longest]
    return SokobanLevel(level.floor, level.goals, boxes, random.choice(sorted(ways)))


def _possible(
    box: Square, way: str, free: frozenset[Square], walk: dict[Square, int]
) -> tuple[Square, Square, Square] | None:
    """(box, where it is pulled to, where the player ends), when the player can get there and has room."""
    stand = ahead(box, way)
    end = ahead(stand, way)
    return (box, stand, end) if stand in walk and end in free else None


def _near(boxes: frozenset[Square], goals: frozenset[Square]) -> bool:
    return any(abs(b[0] - g[0]) + abs(b[1] - g[1]) < 2 for b in boxes for g in goals)
