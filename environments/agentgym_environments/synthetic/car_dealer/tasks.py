"""Deals drawn at random, each with a profit to be made."""

from __future__ import annotations

from functools import lru_cache
from random import Random

from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.synthetic.car_dealer.deal import FEATURES, KINDS, NAMES, Car, Deal


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
        cost = int(price * random.uniform(0.6, 0.75)) // 100 * 100
        features = tuple(sorted(random.sample(FEATURES, random.randint(2, 4))))
        yard.append(Car(name, its, features, price, cost))
    top = max(car.price for car in yard if car.kind == kind)
    budget = int(top * random.uniform(0.7, 1.2)) // 100 * 100
    return Deal(tuple(yard), random.choice(personas), kind, tuple(sorted(random.sample(FEATURES, 2))), budget)
