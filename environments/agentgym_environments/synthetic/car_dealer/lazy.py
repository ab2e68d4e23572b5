"""Lazy dealers: prices by a fixed rule, or by the last number that was told, for any car or the first that fits."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from typing import NamedTuple

import numpy as np

from agentgym.env import Action, LazyPolicy, Step


class ListedCar(NamedTuple):
    name: str
    kind: str
    price: int
    cost: int


Pick = Callable[[list[ListedCar], np.random.Generator], ListedCar]
Price = Callable[[ListedCar, int, int, int], float]
"""(car, offers made before, last price offered, last number that the buyer said; 0 for none) -> the price."""


def listed_cars(step: Step) -> list[ListedCar]:
    """The cars of the first observation."""
    found = re.findall(r"(\w+): (\w+), .*; list (\d+), cost (\d+)", str(step.observation))
    return [ListedCar(name, kind, int(price), int(cost)) for name, kind, price, cost in found]


def sell(
    pick: Pick, price: Price, *, questions: tuple[str, ...] = (), offers: int = 1, again: bool = True
) -> LazyPolicy:
    """A policy that asks, offers a car `offers` times and then accepts what the buyer has named; without `again`,
    another car each time. Only cars of the wanted kind, where it has asked for the kind."""

    def play(step: Step, rng: np.random.Generator) -> Generator[Action, Step, None]:
        cars, number, last = listed_cars(step), 0, 0
        for question in questions:
            step = yield question
            text = str(step.observation)
            if question == "ask kind":
                cars = [car for car in cars if re.search(rf"\b{car.kind}\b", text)] or cars
            number = _last_number(text, number)
        car = pick(cars, rng)
        for tried in range(offers):
            last = max(car.cost, int(price(car, tried, last, number)))
            step = yield f"offer {car.name} {last}"
            number = _last_number(str(step.observation).replace(str(last), "", 1), number)
            car = car if again and "I do not want" not in str(step.observation) else pick(cars, rng)
        while True:
            yield "accept"
            yield f"offer {pick(cars, rng).name} {last}"

    return play


def _last_number(text: str, before: int) -> int:
    found = re.findall(r"\d{4,}", text)
    return int(found[-1]) if found else before


def any_car(cars: list[ListedCar], rng: np.random.Generator) -> ListedCar:
    return cars[int(rng.integers(len(cars)))]


def dearest(cars: list[ListedCar], rng: np.random.Generator) -> ListedCar:
    return max(cars, key=lambda car: car.price)


def widest(cars: list[ListedCar], rng: np.random.Generator) -> ListedCar:
    """The car with the most between list price and cost."""
    return max(cars, key=lambda car: car.price - car.cost)


def of_list(*shares: float) -> Price:
    """Shares of the list price, offer after offer."""
    return lambda car, tried, last, number: car.price * shares[min(tried, len(shares) - 1)]


def of_number(share: float) -> Price:
    """A share of the buyer's last number; the list price before there is one."""
    return lambda car, tried, last, number: share * number if number else car.price


def of_cost(share: float) -> Price:
    return lambda car, tried, last, number: car.cost * share


def split_the_difference(car: ListedCar, tried: int, last: int, number: int) -> float:
    return (last + number) / 2 if last and number else car.price


KIND = ("ask kind",)
MONEY = ("ask kind", "ask budget")

LAZY_POLICIES: Mapping[str, LazyPolicy] = {
    "offer any car at list price, accept her offer": sell(any_car, of_list(1.0)),
    "offer any car twice at list price, accept her offer": sell(any_car, of_list(1.0), offers=2, again=False),
    "offer any car at cost": sell(any_car, of_cost(1.0), offers=2, again=False),
    "offer any car at 70 % of the list price": sell(any_car, of_list(0.7), offers=2, again=False),
    "ask the kind, offer one at list price, accept her offer": sell(any_car, of_list(1.0), questions=KIND),
    "ask the kind, offer the dearest at list price, accept her offer": sell(dearest, of_list(1.0), questions=KIND),
    "ask the kind, offer the widest margin at 95 %": sell(widest, of_list(0.95), questions=KIND, offers=2),
    "ask the kind, offer the widest margin at 90 %": sell(widest, of_list(0.9), questions=KIND, offers=2),
    "ask the kind, offer the widest margin at 85 %": sell(widest, of_list(0.85), questions=KIND, offers=2),
    "ask the kind, offer the widest margin at 80 %": sell(widest, of_list(0.8), questions=KIND, offers=2),
    "ask the kind, offer the widest margin at 70 %": sell(widest, of_list(0.7), questions=KIND, offers=2),
    "ask the kind, offer the widest margin at 90 %, then 80 %": sell(
        widest, of_list(0.9, 0.8), questions=KIND, offers=2
    ),
    "ask the kind, offer the widest margin at 80 %, then 70 %": sell(
        widest, of_list(0.8, 0.7), questions=KIND, offers=2
    ),
    "ask the kind, offer one at 80 %": sell(any_car, of_list(0.8), questions=KIND, offers=2),
    "ask the kind, offer one at 30 % over cost": sell(any_car, of_cost(1.3), questions=KIND, offers=2),
    "ask the kind, offer the widest margin, split the difference": sell(
        widest, split_the_difference, questions=KIND, offers=2
    ),
    "ask the kind, offer the widest margin, then 1.2 times her number": sell(
        widest, of_number(1.2), questions=KIND, offers=2
    ),
    "ask the kind, offer the widest margin, then 1.4 times her number": sell(
        widest, of_number(1.4), questions=KIND, offers=2
    ),
    "ask kind and budget, offer the widest margin at the last number": sell(
        widest, of_number(1.0), questions=MONEY, offers=2
    ),
    "ask kind and budget, offer the widest margin at 1.3 times the last number": sell(
        widest, of_number(1.3), questions=MONEY, offers=2
    ),
    "ask kind and budget, offer one at the last number": sell(any_car, of_number(1.0), questions=MONEY, offers=2),
    "offer any car at the budget that she names": sell(
        any_car, of_number(1.0), questions=("ask budget",), offers=2, again=False
    ),
}
