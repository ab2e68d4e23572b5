"""Kitchens and chores of our own, as PDDL problems of ALFWorld's domain."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

FIXED = ("fridge", "microwave", "sinkbasin")
"""Things that every kitchen has one of: they cool, heat and clean."""

PLACES = {
    "small": {"countertop": 1, "cabinet": 2, "drawer": 1, "diningtable": 1},
    "large": {
        "countertop": 2,
        "cabinet": 5,
        "drawer": 4,
        "diningtable": 1,
        "shelf": 2,
        "garbagecan": 1,
        "stoveburner": 2,
    },
}
"""Size: how many there are of what else holds things."""

OPENABLE = ("fridge", "microwave", "cabinet", "drawer")

SURFACES = ("countertop", "diningtable", "shelf")

THINGS = {
    "apple": ("clean", "heat", "cool"),
    "bread": ("heat", "cool"),
    "egg": ("clean", "heat", "cool"),
    "lettuce": ("clean", "cool"),
    "potato": ("clean", "heat", "cool"),
    "tomato": ("clean", "heat", "cool"),
    "cup": ("clean", "heat", "cool"),
    "mug": ("clean", "heat", "cool"),
    "plate": ("clean", "heat", "cool"),
    "bowl": ("clean", "cool"),
    "pan": ("clean", "cool"),
    "fork": ("clean",),
    "spoon": ("clean",),
    "spatula": ("clean",),
    "saltshaker": (),
    "soapbottle": (),
}
"""Thing: what can be done with it."""

FOOD = ("apple", "bread", "egg", "lettuce", "potato", "tomato")
VESSELS = ("cup", "mug", "plate", "bowl", "pan")
TOOLS = ("fork", "spoon", "spatula", "saltshaker", "soapbottle")

HOLDS = {
    "fridge": (*FOOD, *VESSELS),
    "microwave": ("apple", "bread", "egg", "potato", "tomato", "cup", "mug", "plate"),
    "sinkbasin": (*FOOD, *VESSELS, "fork", "spoon", "spatula"),
    "cabinet": (*VESSELS, "saltshaker", "soapbottle"),
    "drawer": TOOLS,
    "stoveburner": ("pan",),
    "garbagecan": (*FOOD, "soapbottle"),
    **dict.fromkeys(SURFACES, tuple(THINGS)),
}
"""Place: what it can hold."""

KINDS = ("put", "clean", "heat", "cool", "two")
DONE = {"clean": "isClean", "heat": "isHot", "cool": "isCool"}
ABLE = {"clean": "cleanable", "heat": "heatable", "cool": "coolable"}
ADJECTIVES = {"clean": "clean ", "heat": "hot ", "cool": "cool "}
TYPES = {"sinkbasin": "SinkBasinType", "fridge": "FridgeType", "microwave": "MicrowaveType"}


@dataclass(frozen=True)
class Chore:
    """One kitchen and what is to be done in it. `places` and `things` name each by kind and number."""

    kind: str
    thing: str
    target: str
    places: tuple[tuple[str, int], ...]
    things: tuple[tuple[str, int, tuple[str, int]], ...]
    """(kind, number, the place where it is)"""

    @property
    def goal(self) -> str:
        what = f"two {self.thing}s" if self.kind == "two" else f"a {ADJECTIVES.get(self.kind, '')}{self.thing}"
        return f"put {what} {'on' if self.target in (*SURFACES, 'stoveburner') else 'in'} a {self.target}."

    @property
    def content(self) -> str:
        return f"{self.goal} {self.places} {self.things}"

    def problem(self) -> str:
        """The PDDL problem."""
        rooms = {place: f"loc_bar_{number}" for number, place in enumerate(self.places, start=1)}
        kinds = sorted({kind for kind, _ in self.places} | set(TYPES))
        facts = ["(= (total-cost) 0)", "(atLocation agent1 loc_bar_0)"]
        for place, room in rooms.items():
            facts += [
                f"(receptacleType {_id(*place)} {_type(place[0])})",
                f"(receptacleAtLocation {_id(*place)} {room})",
            ]
            facts += [f"(openable {_id(*place)})"] if place[0] in OPENABLE else []
        facts += [f"(canContain {_type(kind)} {_type(thing)})" for kind in kinds for thing in HOLDS[kind]]
        for kind, number, place in self.things:
            name = _id(kind, number)
            facts += [
                f"(objectType {name} {_type(kind)})",
                f"(pickupable {name})",
                f"(inReceptacle {name} {_id(*place)})",
            ]
            facts += [f"(objectAtLocation {name} {rooms[place]})"]
            facts += [f"({ABLE[able]} {name})" for able in THINGS[kind]]
        objects = [
            "agent1 - agent",
            *(f"{room} - location" for room in ("loc_bar_0", *rooms.values())),
            *(f"{_id(*place)} - receptacle" for place in self.places),
            *(f"{_id(kind, number)} - object" for kind, number, _ in self.things),
            *(f"{_type(kind)} - rtype" for kind in kinds),
            *(f"{_type(kind)} - otype" for kind in (*THINGS, "knife", "butterknife")),
        ]
        parts = ["(define (problem kitchen)", "(:domain alfred)", "(:objects", *objects, ")", "(:init", *facts, ")"]
        return "\n".join([*parts, f"(:goal {self._goal()})", "(:metric minimize (total-cost)))"])

    def _goal(self) -> str:
        def there(name: str) -> str:
            state = f" ({DONE[self.kind]} {name})" if self.kind in DONE else ""
            return f"(inReceptacle {name} ?r) (objectType {name} {_type(self.thing)}){state}"

        if self.kind == "two":
            inner = f"(exists (?o1 - object ?o2 - object) (and (not (= ?o1 ?o2)) {there('?o1')} {there('?o2')}))"
        else:
            inner = f"(exists (?o - object) (and {there('?o')}))"
        return f"(exists (?r - receptacle) (and (receptacleType ?r {_type(self.target)}) {inner}))"


def chore(random: Random, kind: str, size: str) -> Chore:
    """A kitchen with a chore that is not done yet. kind: of KINDS, or "mixed"; size: of PLACES."""
    kind = random.choice(KINDS) if kind == "mixed" else kind
    places = [(name, 1) for name in FIXED]
    places += [(name, number) for name, count in PLACES[size].items() for number in range(1, count + 1)]
    thing = random.choice([name for name, able in THINGS.items() if kind in able or kind in ("put", "two")])
    targets = sorted({name for name, _ in places if thing in HOLDS[name]} - {APPLIANCE.get(kind)})
    target = random.choice(targets)
    names = [thing] * (2 if kind == "two" else random.choice((1, 1, 2)))
    others = random.sample(sorted(set(THINGS) - {thing}), 4 if size == "small" else 9)
    things, counts = [], dict.fromkeys(THINGS, 0)
    for name in [*names, *others]:
        free = [place for place in places if name in HOLDS[place[0]] and (name != thing or place[0] != target)]
        counts[name] += 1
        things.append((name, counts[name], random.choice(free)))
    return Chore(kind, thing, target, tuple(places), tuple(sorted(things)))


APPLIANCE = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
"""Kind of chore: where it is done, which is no place to bring the thing to then."""


def _id(kind: str, number: int) -> str:
    """Return a name as the engine writes it; it calls `sink_bar_1_bar_basin` a sinkbasin."""
    return f"sink_bar_{number}_bar_basin" if kind == "sinkbasin" else f"{kind}_bar_{number}"


def _type(kind: str) -> str:
    return TYPES.get(kind, f"{kind.capitalize()}Type")
