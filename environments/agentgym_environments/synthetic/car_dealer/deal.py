"""A deal: the cars on the yard, and a buyer with wishes, a budget and a manner. All prices are in euros.

What she would pay for a car is its value to her or her budget, whichever is less. A car of another kind than she wants
is worth nothing to her.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

KINDS = ("hatchback", "estate", "suv", "van", "roadster", "pickup")
FEATURES = ("sunroof", "towbar", "camera", "navigation", "leather", "heating", "autopilot", "stereo")
NAMES = ("falcon", "heron", "otter", "lynx", "badger", "marten", "plover", "curlew", "bison", "gecko", "viper", "ibex")
MISSED = 0.05
"""Share of the best profit that halves the reward where it is missed."""


@dataclass(frozen=True)
class Persona:
    greeting: str
    base: int
    """Value of a car that has none of her wishes, in per cent of the list price."""
    wish: int = 8
    """The value that each wish adds which the car has, in per cent of the list price."""
    charm: int = 0
    """The value that each of them adds when it was praised, in per cent of the list price."""
    patience: int = 2
    """The refused offer after which she leaves."""
    tells: float = 1.0
    """The budget that she names, as a share of the true one. 1: in two parts; 0: by a car whose list price it is."""
    haggles: bool = False
    """The first price is too much, whatever it is."""


PERSONAS = {
    "frank": Persona("Good morning. I say what I think.", 76),
    "dreamer": Persona("Hello! I want a car to fall in love with. Tell me what is good about it!", 64, charm=5),
    "coy": Persona("Hello. What I can spend is my own affair.", 80, tells=0.0),
    "haggler": Persona("Well, well. Nobody ever got the first price out of me.", 72, tells=0.8, haggles=True),
    "hurried": Persona("I have ten minutes. One offer, and it had better be good.", 68, wish=11, patience=1),
}


@dataclass(frozen=True)
class Car:
    name: str
    kind: str
    features: tuple[str, ...]
    price: int
    """List price."""
    cost: int
    """Price that the house paid; it sells nothing for less."""

    def line(self) -> str:
        return f"{self.name}: {self.kind}, {', '.join(self.features)}; list {self.price}, cost {self.cost}"


@dataclass(frozen=True)
class Deal:
    cars: tuple[Car, ...]
    persona: str
    kind: str
    wishes: tuple[str, ...]
    budget: int
    old_car: int
    """Part of the budget that she has for her old car."""
    own: float
    """Her own offer after one that she refused, as a share of what she would pay."""

    @property
    def buyer(self) -> Persona:
        return PERSONAS[self.persona]

    @cached_property
    def text(self) -> str:
        """The whole deal: two are the same when it is."""
        money = f"{self.budget} with {self.old_car}, {self.own}"
        buyer = f"{self.persona} wants {self.kind} {' '.join(self.wishes)} for {money}"
        return "; ".join([*(car.line() for car in self.cars), buyer])

    def car(self, name: str) -> Car | None:
        return next((car for car in self.cars if car.name == name), None)

    def limit(self, car: Car, praised: int) -> int:
        """The most she pays for a car of whose features she wishes `praised` were praised; 0: nothing."""
        return worth(car, self.kind, self.wishes, self.buyer, praised, self.budget)

    def most(self, car: Car) -> int:
        """The most that can be had for it, whatever is said."""
        return self.limit(car, len(set(self.wishes) & set(car.features)))

    @cached_property
    def best(self) -> int:
        """The greatest profit that can be made."""
        return max(self.most(car) - car.cost for car in self.cars)


def worth(car: Car, kind: str, wishes: tuple[str, ...], buyer: Persona, praised: int, budget: int | None) -> int:
    """Return what a buyer of that kind pays at most, rounded down to 100; budget None: money is no matter."""
    if car.kind != kind:
        return 0
    percent = buyer.base + buyer.wish * len(set(wishes) & set(car.features)) + buyer.charm * praised
    value = car.price * percent // 100
    return (value if budget is None else min(budget, value)) // 100 * 100
