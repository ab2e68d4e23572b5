"""A house: rooms on a grid, furniture in them, things in or on the furniture. It does not change; a `State` does."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property

WAYS = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}

SURFACES = ("table", "desk", "bed", "bench", "shelf", "stool", "sofa", "counter")
CONTAINERS = ("drawer", "chest", "cupboard", "fridge", "wardrobe", "box")
ROOMS = {
    "kitchen": ("table", "counter", "fridge", "cupboard"),
    "bedroom": ("bed", "shelf", "wardrobe", "drawer"),
    "bathroom": ("stool", "shelf", "cupboard", "box"),
    "study": ("desk", "shelf", "drawer", "chest"),
    "lounge": ("sofa", "table", "cupboard", "chest"),
    "cellar": ("bench", "shelf", "chest", "box"),
    "garage": ("bench", "counter", "box", "cupboard"),
    "nursery": ("bed", "stool", "box", "wardrobe"),
    "hall": ("stool", "bench", "wardrobe", "chest"),
}
THINGS = (
    "apple",
    "book",
    "coin",
    "cup",
    "hat",
    "key",
    "lamp",
    "knife",
    "letter",
    "map",
    "ring",
    "rope",
    "towel",
    "vase",
)

Spot = tuple[str, str]
"""(room, furniture)"""


@dataclass(frozen=True)
class House:
    doors: dict[str, dict[str, str]]
    """room -> way -> room"""
    furniture: dict[str, tuple[str, ...]]
    """room -> what stands in it; the first is a surface"""
    goals: tuple[tuple[str, Spot], ...]
    """(thing, where it belongs)"""
    start: str
    things: dict[str, Spot]
    """Place of every thing at first."""

    @cached_property
    def description(self) -> str:
        """The goal, in words."""
        return "goal: " + "; ".join(f"put {thing} {on(spot[1])} {spot[1]}, {spot[0]}" for thing, spot in self.goals)

    @cached_property
    def text(self) -> str:
        """The whole house as one text: two houses are the same when it is."""
        rooms = [f"{room} {sorted(ways.items())} {self.furniture[room]}" for room, ways in sorted(self.doors.items())]
        return "; ".join([self.description, self.start, *rooms, str(sorted(self.things.items()))])

    def path(self, start: str, known: set[str], goals: set[str]) -> list[str]:
        """Fewest ways from `start` to any of `goals` through rooms of `known`; empty when there is none."""
        came: dict[str, list[str]] = {start: []}
        queue = deque([start])
        while queue:
            here = queue.popleft()
            if here in goals:
                return came[here]
            if here in known:
                for way, room in self.doors[here].items():
                    if room not in came:
                        came[room] = [*came[here], way]
                        queue.append(room)
        return []


@dataclass(frozen=True)
class NavigationState:
    here: str
    things: dict[str, Spot | None]
    """None: carried."""
    open: frozenset[Spot]
    visited: frozenset[str]
    """Rooms that were visited; only the solver reads it."""

    @property
    def carried(self) -> str | None:
        return next((thing for thing, spot in self.things.items() if spot is None), None)

    def shows(self, spot: Spot) -> bool:
        """Return what is there can be seen and taken from within the room."""
        return spot[1] in SURFACES or spot in self.open

    def inside(self, spot: Spot) -> list[str]:
        return sorted(thing for thing, at in self.things.items() if at == spot)


def on(furniture: str) -> str:
    return "on" if furniture in SURFACES else "in"
