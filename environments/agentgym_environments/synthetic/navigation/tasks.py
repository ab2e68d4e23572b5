"""Houses drawn at random; none asks for a thing that already lies where it belongs."""

from __future__ import annotations

from functools import lru_cache
from random import Random

from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.synthetic.navigation.house import CONTAINERS, ROOMS, SURFACES, THINGS, WAYS, House, Spot

BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}


@lru_cache(maxsize=4096)
def house(rooms: int, goals: int, closed: bool, split: str, task: int) -> House:
    """Task `task` of `split`. closed: furniture with doors and lids is there, too."""
    random = task_random("navigation", rooms, goals, closed, split, task)
    while True:
        made = _attempt(random, rooms, goals, closed)
        if split_of(made.text) == split:
            return made


def _attempt(random: Random, rooms: int, goals: int, closed: bool) -> House:
    names = random.sample(sorted(ROOMS), rooms)
    doors = _doors(random, names)
    furniture = {}
    for name in names:
        surface = random.choice([piece for piece in ROOMS[name] if piece in SURFACES])
        others = [piece for piece in ROOMS[name] if piece != surface and (closed or piece in SURFACES)]
        furniture[name] = (surface, *random.sample(others, min(len(others), 1 + closed)))
    spots = [(room, piece) for room in names for piece in furniture[room]]
    things = {thing: random.choice(spots) for thing in sorted(random.sample(THINGS, rooms + goals))}
    wanted = random.sample(sorted(things), goals)
    aims: list[tuple[str, Spot]] = []
    for thing in wanted:
        hidden = [spot for spot in spots if spot[1] in CONTAINERS]
        if hidden:
            things[thing] = random.choice(hidden)
        away = [spot for spot in spots if spot[0] != things[thing][0]]
        aims.append((thing, random.choice(away)))
    start = random.choice([name for name in names if name != things[wanted[0]][0]])
    return House(doors, furniture, tuple(aims), start, things)


def _doors(random: Random, names: list[str]) -> dict[str, dict[str, str]]:
    """Rooms on a grid, each beside one that was there before: a tree, so that there is one way."""
    at = {(0, 0): names[0]}
    doors: dict[str, dict[str, str]] = {name: {} for name in names}
    for name in names[1:]:
        free = [
            (square, way, (square[0] + dx, square[1] + dy))
            for square in sorted(at)
            for way, (dx, dy) in WAYS.items()
            if (square[0] + dx, square[1] + dy) not in at
        ]
        square, way, beside = random.choice(free)
        at[beside] = name
        doors[at[square]][way] = name
        doors[name][BACK[way]] = at[square]
    return doors
