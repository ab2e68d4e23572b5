"""The solver: it asks, works out what she would pay, offers a little more once, and reads her answer.

It knows what was said and how buyers of each manner behave, which the README tells; never what is hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentgym_environments.synthetic.car_dealer.deal import Car, Persona, worth


@dataclass(frozen=True)
class Known:
    """Facts that the seller has heard."""

    cars: tuple[Car, ...]
    buyer: Persona
    kind: str | None
    wishes: tuple[str, ...] | None
    knows_budget: bool
    budget: int | None
    """The true one, where it follows from what she said."""
    praised: frozenset[tuple[str, str]]
    """(car, feature)"""
    refused: tuple[tuple[str, int], ...]
    """(car, what she would have paid) for every offer refused, as her own offers tell."""


def next_action(known: Known) -> str:
    if known.kind is None:
        return "ask kind"
    if known.wishes is None:
        return "ask wishes"
    if not known.knows_budget and known.buyer.tells:
        return "ask budget"
    budget = _budget(known)
    car = max(known.cars, key=lambda one: _most(known, one, budget) - one.cost)
    if known.buyer.charm:
        for feature in sorted(set(known.wishes) & set(car.features)):
            if (car.name, feature) not in known.praised:
                return f"praise {car.name} {feature}"
    price = _most(known, car, budget)
    for name, limit in known.refused:
        if name == car.name:
            price = min(price, limit)
    first = not known.refused and known.buyer.haggles
    return f"offer {car.name} {price + 100 if first else max(price, car.cost)}"


def _most(known: Known, car: Car, budget: int | None) -> int:
    praised = len(set(known.wishes or ()) & set(car.features))
    return worth(car, known.kind or "", known.wishes or (), known.buyer, praised, budget)


def _budget(known: Known) -> int | None:
    """Return what she named, or what a refused offer gave away: she would have paid less than the car's value to
    her."""
    if known.budget is not None:
        return known.budget
    by_name = {car.name: car for car in known.cars}
    tight = [limit for name, limit in known.refused if limit < _most(known, by_name[name], None)]
    return min(tight, default=None)
