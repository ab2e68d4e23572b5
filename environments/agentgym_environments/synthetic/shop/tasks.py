"""Tasks: what is wanted, drawn from the catalogue so that it can be had, and put into words."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from random import Random

from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.synthetic.shop.catalogue import Product, kinds, products, search
from agentgym_environments.synthetic.shop.goals import ShoppingGoal, Wanted
from agentgym_environments.synthetic.shop.shop import A_PAGE, ADDRESSES

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
    turns: int
    """Most turns, in text."""
    hidden: bool = True
    """True where features may be asked for that are told on a product's page only."""


LEVELS = {
    "easy": ShopLevel(1, (2, 2), (0, 0), 12, hidden=False),
    "one": ShopLevel(1, (2, 3), (1, 2), 20),
    "two": ShopLevel(2, (2, 3), (1, 2), 40),
}
ALIKE = 12
"""Least products of the kind, within the limit and without a feature asked for in their titles, of which one fits."""

CHOICE = 4
"""Least limits to choose from, so that a limit does not say what the product costs."""


@lru_cache(maxsize=4096)
def make_task(level: str, split: str, index: int) -> ShoppingGoal:
    """The goal of a task; the same for the same arguments."""
    random, rules = task_random("shop", level, split, index), LEVELS[level]
    while True:
        wanted: dict[Wanted, int] = {}
        while len(wanted) < rules.items:
            one = _want(rules, random)
            euros = 0 if one is None or split_of(one.content) != split else _limit(one, random)
            if one is not None and euros and one.kind not in [other.kind for other in wanted]:
                wanted[one] = euros
        goal = _put(rules, tuple(wanted), sum(wanted.values()), random)
        if not _is_found_at_once(goal):
            return goal


def _put(rules: ShopLevel, wanted: tuple[Wanted, ...], euros: int, random: Random) -> ShoppingGoal:
    """The goal in words."""
    address = random.choice(ADDRESSES) if rules.items > 1 else ""
    towns = random.sample(TOWNS, len(ADDRESSES))
    streets = tuple(f"{random.randint(1, 99)} {random.choice(STREETS)}, {town}" for town in towns)
    what = "; and ".join(_say(one) for one in wanted)
    text = random.choice(ONE if rules.items == 1 else TWO).format(what=what, price=euros, address=address)
    return ShoppingGoal(text, wanted, 100 * euros, address, streets)


def _want(rules: ShopLevel, random: Random) -> Wanted | None:
    """Something to ask for, with features that the title of a product that has them leaves out; None where too few."""
    product: Product = random.choice(random.choice(list(kinds().values())))
    untitled = [feature for feature in product.untitled if rules.hidden or feature in product.shown]
    count = random.randint(*rules.features)
    if len(untitled) < count:
        return None
    features = random.sample(untitled, count)
    names = random.sample(range(len(product.options)), random.randint(*rules.options))
    options = tuple((product.options[i][0], random.choice(product.options[i][1])) for i in sorted(names))
    return Wanted(product.kind, tuple(features), options, product.number)


def _limit(one: Wanted, random: Random) -> int:
    """A price in euros within which the target alone fits, one among many that look alike; 0 where there is none.

    It says nothing of the target: it is neither the cheapest within the limit nor one of the two dearest.
    """
    by_price = sorted(kinds()[one.kind], key=lambda product: product.cents)
    fitting = [place for place, product in enumerate(by_price) if one.has(product)]
    alike = list(accumulate(not any(feature in product.title for feature in one.features) for product in by_price))
    limits = []
    for product in by_price:
        euros = -(-product.cents // 100)
        within = bisect_right(by_price, 100 * euros, key=lambda other: other.cents)
        some = [place for place in fitting if place < within]
        if alike[within - 1] >= ALIKE and len(some) == 1 and 0 < some[0] < within - 2:
            limits.append(euros if by_price[some[0]].number == one.target else 0)
    return random.choice(limits[1:]) if len(limits) >= CHOICE else 0


def _is_found_at_once(goal: ShoppingGoal) -> bool:
    """Return whether a search for what the task says has a wanted product first or last on its first page, of all
    results or of those within the limit."""
    targets = {one.target for one in goal.wanted}
    queries = [goal.text, *(query for one in goal.wanted for query in (one.kind, " ".join((*one.features, one.kind))))]
    for results in map(search, queries):
        page = results[:A_PAGE]
        within = [number for number in page if products()[number].cents <= goal.cents]
        if targets & {*page[:1], *page[-1:], *within[:1], *within[-1:]}:
            return True
    return False


def _say(one: Wanted) -> str:
    """ "sandals (vegan, wide fit) in size 38 and colour red"."""
    options = " and ".join(f"{name} {value}" for name, value in one.options)
    return f"{one.kind} ({', '.join(one.features)})" + (f" in {options}" if options else "")
