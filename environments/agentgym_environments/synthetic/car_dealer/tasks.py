"""Deals drawn at random, each with a profit to be made."""

from __future__ import annotations

from functools import lru_cache
from random import Random

from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.synthetic.car_dealer.deal import FEATURES, KINDS, NAMES, PERSONAS, Car, Deal


@lru_cache(maxsize=4096)
def deal(cars: int, alike: int, personas: tuple[str, ...], split: str, task: int) -> Deal:
    """Task `task` of `split`; `alike` of the cars are of the kind that is wanted."""
    random = task_random("car-dealer", cars, alike, *personas, split, task)
    while True:
        made = _attempt(random, cars, alike, personas)
        if made.best >= 1500 and split_of(made.text) == split:
            return made


def _attempt(random: Random, cars: int, alike: int, personas: tuple[str, ...]) -> Deal:
    kind = random.choice(KINDS)
    others = [other for other in KINDS if other != kind]
    kinds = [kind] * alike + [random.choice(others) for _ in range(cars - alike)]
    random.shuffle(kinds)
    yard = []
    for name, its in zip(random.sample(NAMES, cars), kinds):
        price = 100 * random.randint(120, 480)
        cost = int(price * random.uniform(0.45, 0.65)) // 100 * 100
        features = tuple(sorted(random.sample(FEATURES, random.randint(2, 5))))
        yard.append(Car(name, its, features, price, cost))
    persona = random.choice(personas)
    wanted = random.choice([car.price for car in yard if car.kind == kind])
    budget = int(wanted * random.uniform(0.6, 1.0)) // 100 * 100
    if not PERSONAS[persona].tells:  # it is the list price of a car
        budget = min((car.price for car in yard), key=lambda price: abs(price - budget))
    old_car = int(budget * random.uniform(0.1, 0.4)) // 100 * 100
    wishes = tuple(sorted(random.sample(FEATURES, 3)))
    return Deal(tuple(yard), persona, kind, wishes, budget, old_car, round(random.uniform(0.55, 0.85), 2))
