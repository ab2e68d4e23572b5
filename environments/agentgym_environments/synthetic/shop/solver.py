"""The scripted customer: it knows which products fit, and does with the pages what anyone could."""

from __future__ import annotations

from typing import NamedTuple

from agentgym_environments.synthetic.shop.catalogue import products
from agentgym_environments.synthetic.shop.goals import ShoppingGoal, Wanted, assign, matched
from agentgym_environments.synthetic.shop.shop import Event, Line, State, found, last_page


class Move(NamedTuple):
    event: Event
    why: str
    """Reason in words, as a hint."""


def next_move(goal: ShoppingGoal, state: State) -> Move:
    """Return what to do in any state of an order that is not placed."""
    served = [_served(one, state, i) for one, i in zip(goal.wanted, assign(goal, state.basket))]
    wrong = [str(i + 1) for i in range(len(state.basket)) if i not in served]
    if wrong:
        if state.page != "basket":
            return Move(("basket",), "Something in the basket was not asked for, or not so: look at it.")
        return Move(("remove", wrong[0]), f"Line {wrong[0]} is not what was asked for: remove it.")
    missing = [one for one, i in zip(goal.wanted, served) if i is None]
    if missing:
        return _get(missing[0], state, last=len(missing) == 1 and not goal.address)
    if goal.address and state.address != goal.address:
        if state.page != "account":
            return Move(("account",), "The order goes to another address: it is changed in the account.")
        return Move(("choose", "address", goal.address), f"Choose the {goal.address} address.")
    if state.page == "checkout":
        return Move(("order",), "All is as asked: place the order.")
    if state.page == "basket":
        return Move(("checkout",), "All is in the basket: go to the checkout.")
    return Move(("basket",), "All is in the basket: go there, and to the checkout.")


def _served(one: Wanted, state: State, index: int | None) -> int | None:
    """The line of the basket that fully serves what is wanted."""
    if index is None:
        return None
    line = state.basket[index]
    return index if matched(one, line) == one.points and _fits(one, line.product) else None


def _fits(one: Wanted, number: int) -> bool:
    """Not dearer than the target, so that a whole order stays within its limit."""
    product = products()[number]
    return one.has(product) and product.cents <= products()[one.target].cents


def _get(one: Wanted, state: State, last: bool) -> Move:
    query = one.kind.lower()
    if state.page == "product" and _fits(one, state.product):
        for name, value in one.options:
            if dict(state.chosen)[name] != value:
                return Move(("choose", name, value), f"This one has it all: choose {name} {value}.")
        ready = matched(one, Line(state.product, state.chosen)) == one.points
        assert ready
        return Move(("buy",), "Buy it as it is.") if last else Move(("add",), "Put it into the basket as it is.")
    if state.page != "results" or state.query != query:
        return Move(("search", query, "1"), f"Search for {query}: titles leave out the features asked for.")
    for number in found(state):
        if _fits(one, number):
            return Move(("product", str(number)), f"P{number} has what was asked for: open it.")
    if state.number < last_page(query):
        return Move(("search", query, str(state.number + 1)), "None of these fits: look at the next page.")
    return Move(("search", query, "1"), "It was on an earlier page: search again.")
