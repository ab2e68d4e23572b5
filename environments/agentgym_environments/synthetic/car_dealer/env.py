"""Car dealer: find out what a buyer wants and can pay, and sell her a car for as much as she gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import Outcome, TurnEnv
from agentgym_environments.synthetic.car_dealer.deal import FEATURES, MISSED, NAMES, PERSONAS, Car, Deal
from agentgym_environments.synthetic.car_dealer.lazy import LAZY_POLICIES
from agentgym_environments.synthetic.car_dealer.solver import Known, next_action
from agentgym_environments.synthetic.car_dealer.tasks import deal

_OFFER = re.compile(r"offer (?:the )?(\w+) (?:at |for )?[€$]?(\d{1,7})(?: ?€| euros?)?")
_PRAISE = re.compile(r"praise (?:the )?(\w+)(?:['’]s)? (\w+)")
QUESTIONS = ("ask kind", "ask wishes", "ask budget")


class CarDealer(TurnEnv):
    """Reward, once, at the sale: 1 for the best profit that could be made, half as much for each twentieth of it that
    is missed. A buyer who leaves pays nothing.

    cars: on the yard, 2 to 12. alike: of them, of the kind that is wanted; at most all. personas: manners of buyers,
    names joined by "+". enough: the share of the best profit that is a success.
    """

    out_of_turns_terminates = True
    lazy_policies = LAZY_POLICIES

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        cars: int = 12,
        alike: int = 4,
        personas: str = "frank+dreamer+coy",
        enough: float = 0.9,
    ) -> None:
        super().__init__(spec or EnvSpec.load(Path(__file__).with_name("spec.toml")))
        manners, alike = tuple(personas.split("+")), min(alike, cars)
        if not 2 <= cars <= len(NAMES) or not alike >= 1 or not set(manners) <= set(PERSONAS):
            raise ConfigError(
                f"car-dealer: cars is 2 to {len(NAMES)}, alike 1 or more, personas some of {'+'.join(PERSONAS)}; "
                f"not {cars}, {alike}, {personas!r}"
            )
        self.cars, self.alike, self.personas, self.enough = cars, alike, manners, enough
        self.task: tuple[str, int] = ("", 0)
        self.deal: Deal
        self.reply = ""
        """The buyer's last words."""
        self.questions: set[str] = set()
        self.praised: set[tuple[str, str]] = set()
        """(car, feature)"""
        self.refused: list[tuple[str, int]] = []
        """(car, price) of the offers that she refused."""
        self.counter: tuple[str, int] | None = None
        """(car, price) that she offers herself."""

    def begin(self, split: str, task: int) -> None:
        self.task, self.deal = (split, task), deal(self.cars, self.alike, self.personas, split, task)
        self.reply = f"{self.deal.buyer.greeting} What do you have for me?"
        self.questions, self.praised, self.refused, self.counter = set(), set(), [], None

    def observe(self) -> str:
        if self.turn > 0:
            return f"buyer: {self.reply}"
        return "\n".join([*(car.line() for car in self.deal.cars), f"buyer: {self.reply}"])

    def refuse(self, action: str) -> str:
        first = self.deal.cars[0]
        return (
            f"not understood; say {', '.join(QUESTIONS)}, praise {first.name} {first.features[0]}, "
            f"offer {first.name} {first.price} or, when she has named a price, accept\n{self.observe()}"
        )

    def act(self, action: str) -> Outcome | None:
        text = action.rstrip(".!?").replace(",", "")
        if text in QUESTIONS:
            self.reply = self._answer(text)
            self.questions.add(text)
            return Outcome()
        if text == "accept":
            return self._accept()
        if (praise := _PRAISE.fullmatch(text)) and praise[2] in FEATURES and (car := self.deal.car(praise[1])):
            self._praise(car, praise[2])
            return Outcome()
        if (offer := _OFFER.fullmatch(text)) and (car := self.deal.car(offer[1])):
            return self._offer(car, int(offer[2]))
        return None

    def _answer(self, question: str) -> str:
        if question == "ask kind":
            return f"I am looking for a {self.deal.kind}."
        if question == "ask wishes":
            *others, last = self.deal.wishes
            buyer = self.deal.buyer
            more = f", and {buyer.charm} % more if you praise it" if buyer.charm else ""
            return (
                f"I should like it with {', '.join(others)} and {last}. Without them I give {buyer.base} % of the list "
                f"price at most; each adds {buyer.wish} %{more}."
            )
        if not self.deal.buyer.tells:
            like = next(car.name for car in self.deal.cars if car.price == self.deal.budget)
            return f"As much as you ask for the {like}, whatever it is that I buy."
        if self.deal.buyer.tells < 1:
            return f"I can spend {self._named_budget()}."
        return f"I have {self.deal.budget - self.deal.old_car}, and I get {self.deal.old_car} for my old car."

    def _named_budget(self) -> int:
        return int(self.deal.budget * self.deal.buyer.tells)

    def _praise(self, car: Car, feature: str) -> None:
        if feature not in car.features:
            self.reply = f"The {car.name} has no {feature}, I see."
            return
        self.praised.add((car.name, feature))
        keen = feature in self.deal.wishes and self.deal.buyer.charm
        self.reply = f"A {feature}! I love that." if keen else f"A {feature}, very well."

    def limit(self, car: Car) -> int:
        """The most she pays for it now."""
        praised = {feature for name, feature in self.praised if name == car.name}
        return self.deal.limit(car, len(praised & set(self.deal.wishes)))

    def _offer(self, car: Car, price: int) -> Outcome:
        if price < car.cost:
            self.reply = f"(the house does not sell the {car.name} below its cost, {car.cost}; the buyer hears nothing)"
            return Outcome()
        limit, buyer = self.limit(car), self.deal.buyer
        if price <= limit and (self.refused or not buyer.haggles):
            return self._sold(car, price)
        self.refused.append((car.name, price))
        if len(self.refused) >= buyer.patience:
            self.reply = "That was too much of my time. Goodbye."
            return Outcome(ended=True)
        if not limit:
            self.reply = f"I do not want a {car.kind}."
        else:
            self.counter = (car.name, int(limit * self.deal.own))
            self.reply = f"{price} is too much. I would give you {self.counter[1]} for the {car.name}."
        return Outcome()

    def _accept(self) -> Outcome:
        if self.counter is None:
            self.reply = "I have not offered anything."
            return Outcome()
        car = self.deal.car(self.counter[0])
        if car is None or self.counter[1] < car.cost:
            self.reply = "(the house does not sell below its cost; the buyer hears nothing)"
            return Outcome()
        return self._sold(car, self.counter[1])

    def _sold(self, car: Car, price: int) -> Outcome:
        share = min(1.0, (price - car.cost) / self.deal.best)
        self.reply = f"Done: the {car.name} for {price}. (profit {price - car.cost}, at best {self.deal.best})"
        return Outcome(0.5 ** ((1 - share) / MISSED), ended=True, success=share >= self.enough)

    def key(self) -> str:
        praised = " ".join(f"{name}-{feature}" for name, feature in sorted(self.praised))
        return f"{self.deal.text}; {sorted(self.questions)}; {praised}; {self.refused}; {self.counter}; {self.over}"

    def describe(self) -> dict[str, Any]:
        """`available_actions`: every question and praise, accept, and for each car offers from its cost to its list
        price; any other price may be offered, too.
        """
        if self.over:
            return {"available_actions": []}
        doing = list(QUESTIONS)
        for car in self.deal.cars:
            doing += [f"praise {car.name} {feature}" for feature in car.features]
            step = (car.price - car.cost) / 4
            doing += [f"offer {car.name} {int(car.cost + step * number)}" for number in range(5)]
        return {"available_actions": doing + ["accept"] * (self.counter is not None)}

    def solver(self) -> str:
        self.require_episode("solver")
        deal, questions = self.deal, self.questions
        budget = deal.budget
        if deal.buyer.tells:  # worked out from what she names
            budget = round(self._named_budget() / deal.buyer.tells / 100) * 100
        known = Known(
            deal.cars,
            deal.buyer,
            deal.kind if "ask kind" in questions else None,
            deal.wishes if "ask wishes" in questions else None,
            budget if "ask budget" in questions else None,
            frozenset(self.praised),
            bool(self.refused),
        )
        return next_action(known)

    def save(self) -> Any:
        return {
            "task": self.task,
            "said": self.reply,
            "asked": sorted(self.questions),
            "praised": sorted(self.praised),
            "refused": self.refused,
            "counter": self.counter,
        }

    def load(self, state: Any) -> None:
        self.begin(*state["task"])
        self.reply, self.questions = state["said"], set(state["asked"])
        self.praised = {(name, feature) for name, feature in state["praised"]}
        self.refused = [(name, price) for name, price in state["refused"]]
        self.counter = tuple(state["counter"]) if state["counter"] else None
