"""The solver: it asks, works out what she would pay, and offers that.

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
    budget: int | None
    praised: frozenset[tuple[str, str]]
    """(car, feature)"""
    refused: bool
    """She has refused an offer."""


def next_action(known: Known) -> str:
    if known.kind is None:
        return "ask kind"
    if known.wishes is None:
        return "ask wishes"
    if known.budget is None:
        return "ask budget"
    car = max(known.cars, key=lambda one: _most(known, one) - one.cost)
    if known.buyer.charm:
        for feature in sorted(set(known.wishes) & set(car.features)):
            if (car.name, feature) not in known.praised:
                return f"praise {car.name} {feature}"
    price = _most(known, car)
    return f"offer {car.name} {price + 100 if known.buyer.haggles and not known.refused else price}"


def _most(known: Known, car: Car) -> int:
    praised = len(set(known.wishes or ()) & set(car.features))
    return worth(car, known.kind or "", known.wishes or (), known.buyer, praised, known.budget)
