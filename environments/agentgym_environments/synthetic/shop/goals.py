"""Goals of a customer, how near an order comes to them, and its reward."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

from agentgym_environments.synthetic.shop.catalogue import Product, products
from agentgym_environments.synthetic.shop.shop import Line, State, total


@dataclass(frozen=True)
class Wanted:
    """One product of the order."""

    kind: str
    features: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    target: int
    """A product that has it all within the price. The agent is not told; any other that has it will do."""

    @property
    def points(self) -> int:
        return 1 + len(self.features) + len(self.options)

    @property
    def content(self) -> str:
        """Return what decides about the split: never asked for in another."""
        return "/".join((self.kind, *sorted(self.features)))

    def has(self, product: Product) -> bool:
        """Return whether a product can be ordered so that nothing but the price is amiss."""
        offered = dict(product.options)
        return (
            product.kind == self.kind
            and set(self.features) <= set(product.features)
            and all(value in offered.get(name, ()) for name, value in self.options)
        )


@dataclass(frozen=True)
class ShoppingGoal:
    text: str
    """Text that the agent reads."""
    wanted: tuple[Wanted, ...]
    cents: int
    """Most that the whole order may cost."""
    address: str = ""
    """Address where it shall go; empty where none was named."""
    streets: tuple[str, ...] = ()
    """Streets of the customer's addresses, in the order of ADDRESSES."""

    @property
    def points(self) -> int:
        return sum(one.points for one in self.wanted) + 1 + bool(self.address)


def matched(wanted: Wanted, line: Line) -> int:
    """Points of a line of the basket: kind, features and options; none when it is of another kind."""
    product = products()[line.product]
    if product.kind != wanted.kind:
        return 0
    return 1 + len(set(wanted.features) & set(product.features)) + len(set(wanted.options) & set(line.options))


def assign(goal: ShoppingGoal, basket: tuple[Line, ...]) -> tuple[int | None, ...]:
    """Return for each wanted product the index of the line that serves it best, or None."""
    slots: list[int | None] = [*range(len(basket)), *([None] * len(goal.wanted))]

    def worth(chosen: tuple[int | None, ...]) -> int:
        return sum(matched(one, basket[i]) for one, i in zip(goal.wanted, chosen) if i is not None)

    best = max(permutations(slots, len(goal.wanted)), key=worth)
    return tuple(i if i is not None and matched(one, basket[i]) else None for one, i in zip(goal.wanted, best))


def score(goal: ShoppingGoal, state: State) -> float:
    """Points had / points there are, from 0 to 1: how near the order is to what was asked.

    A point each for the kind, every feature and every option of each wanted product, for the price, and for the address
    where one was asked for. The last two count only when every kind is there. Products that nobody asked for divide
    the score.
    """
    served = assign(goal, state.basket)
    had = sum(matched(one, state.basket[i]) for one, i in zip(goal.wanted, served) if i is not None)
    if None not in served:
        had += total(state) <= goal.cents
        had += bool(goal.address) and state.address == goal.address
    return had / goal.points * min(1.0, len(goal.wanted) / max(1, len(state.basket)))


def reward(goal: ShoppingGoal, state: State) -> float:
    """Share of the wanted products that an order has exactly as asked; 0 beyond the limit or to another address.

    Products that nobody asked for divide it.
    """
    if total(state) > goal.cents or (goal.address and state.address != goal.address):
        return 0.0
    served = zip(goal.wanted, assign(goal, state.basket))
    exact = sum(i is not None and matched(one, state.basket[i]) == one.points for one, i in served)
    return exact / max(len(goal.wanted), len(state.basket))
