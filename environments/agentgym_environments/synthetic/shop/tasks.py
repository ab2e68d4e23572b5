"""Tasks: what is wanted, drawn from the catalogue so that it can be had, and put into words."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.synthetic.shop.catalogue import Product, kinds, products
from agentgym_environments.synthetic.shop.goals import ShoppingGoal, Wanted
from agentgym_environments.synthetic.shop.shop import ADDRESSES

STREETS = ("Mill Lane", "Station Road", "Harbour Street", "Chapel Hill", "Orchard Way", "King Street", "Elm Grove")
TOWNS = ("York", "Bath", "Leeds", "Truro", "Derby", "Perth", "Cardiff", "Exeter")
ONE = (
    "I am looking for {what}, for at most {price} euros.",
    "Please buy {what}. It must not cost more than {price} euros.",
    "Order {what}. My limit is {price} euros.",
    "I need {what}, and I want to pay {price} euros at most.",
)
TWO = (
    "I need two things: {what}. Together they may cost {price} euros at most. Deliver to my {address} address.",
    "Please order {what}, in one order for no more than {price} euros in all, delivered to my {address} address.",
    "Order these two and nothing else, to my {address} address and for {price} euros at most: {what}.",
)


@dataclass(frozen=True)
class ShopLevel:
    """Size of what a task asks for."""

    items: int
    features: tuple[int, int]
    """Least and most of an item."""
    options: tuple[int, int]
    slack: tuple[float, float]
    """The limit over the price of what is known to fit, as a share of it."""
    turns: int
    """Most turns, in text."""
    hidden: bool = True
    """True where features may be asked for that search does not know of."""


LEVELS = {
    "easy": ShopLevel(1, (1, 1), (0, 0), (0.1, 0.5), 12, hidden=False),
    "one": ShopLevel(1, (2, 3), (1, 2), (0.02, 0.3), 20),
    "two": ShopLevel(2, (2, 3), (1, 2), (0.01, 0.1), 40),
}


def make_task(level: str, split: str, index: int) -> ShoppingGoal:
    """The goal of a task; the same for the same arguments."""
    random, rules = task_random("shop", level, split, index), LEVELS[level]
    wanted: list[Wanted] = []
    while len(wanted) < rules.items:
        one = _want(rules, random)
        if split_of(one.content) == split and one.kind not in [other.kind for other in wanted]:
            wanted.append(one)
    cost = sum(products()[one.target].cents for one in wanted)
    euros = int(cost * (1 + random.uniform(*rules.slack)) / 100) + 1
    address = random.choice(ADDRESSES) if rules.items > 1 else ""
    towns = random.sample(TOWNS, len(ADDRESSES))
    streets = tuple(f"{random.randint(1, 99)} {random.choice(STREETS)}, {town}" for town in towns)
    what = "; and ".join(_say(one) for one in wanted)
    text = random.choice(ONE if rules.items == 1 else TWO).format(what=what, price=euros, address=address)
    return ShoppingGoal(text, tuple(wanted), 100 * euros, address, streets)


def _want(rules: ShopLevel, random: Random) -> Wanted:
    product: Product = random.choice(random.choice(list(kinds().values())))
    features = random.sample(product.features if rules.hidden else product.known, random.randint(*rules.features))
    names = random.sample(range(len(product.options)), random.randint(*rules.options))
    options = tuple((product.options[i][0], random.choice(product.options[i][1])) for i in sorted(names))
    return Wanted(product.kind, tuple(features), options, product.number)


def _say(one: Wanted) -> str:
    """ "sandals (vegan, wide fit) in size 38 and colour red"."""
    options = " and ".join(f"{name} {value}" for name, value in one.options)
    return f"{one.kind} ({', '.join(one.features)})" + (f" in {options}" if options else "")
