"""Cases: a shop with customers and orders, one customer who calls, and what he wants."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import lru_cache
from typing import Any

from agentgym_environments.base.text_env import task_random
from agentgym_environments.synthetic.tools import words
from agentgym_environments.synthetic.tools.database import Database, Dump
from agentgym_environments.synthetic.tools.goals import Says, StateGoal
from agentgym_environments.synthetic.tools.job import Job, added, updated
from agentgym_environments.synthetic.tools.life import somebody
from agentgym_environments.synthetic.tools.registry import euros
from agentgym_environments.synthetic.tools_dialogue.desk import SCHEMA, ServiceDesk
from agentgym_environments.synthetic.tools_dialogue.policy import DAYS, GOLD_DAYS
from agentgym_environments.synthetic.tools_dialogue.users import PERSONAS, Caller, Wish

THINGS = [
    "raincoat",
    "desk lamp",
    "backpack",
    "teapot",
    "armchair",
    "headphones",
    "suitcase",
    "blanket",
    "kettle",
    "mirror",
    "scarf",
    "wallet",
]
COLOURS = ("black", "white", "red", "blue", "green", "grey")
STREETS = ("Elm Street", "Mill Lane", "Harbour Road", "Church Square", "Garden Way")
LAST_DELIVERY = 9
"""Days from today on within which what is on its way comes."""

ASK = {
    "return": "which item is it, and how shall I refund it?",
    "exchange": "which item is it, and which colour shall it be?",
    "address": "which new address is it?",
}
"""Questions of the solver for the details of a wish."""

Row = dict[str, Any]


@dataclass
class Case:
    """A conversation to come."""

    job: Job
    caller: Caller
    must_say: list[Says]
    """Contents that the agent's messages must have had, each in one message."""
    arrives: str
    """Day on which an order comes, which the agent must have said; "" where it was not asked for."""
    today: str
    image: bytes = b""
    before: Dump = field(default_factory=dict)

    def desk(self) -> ServiceDesk:
        return ServiceDesk(Database(image=self.image), self.today)


class RetailData:
    """Fills the shop's database."""

    def __init__(self, chance: random.Random, split: str) -> None:
        self.chance, self.db = chance, Database(SCHEMA)
        self.today = date(2026, 1, 5) + timedelta(days=chance.randrange(700))
        self._used: set[int] = set()
        self.things = chance.sample(THINGS, 10)
        for thing in self.things:
            for colour in chance.sample(COLOURS, 3):
                stock = int(chance.random() < 0.8)
                self.add("products", name=thing, colour=colour, price=chance.randrange(1500, 9900), in_stock=stock)
        self.me = self.customer(*somebody(chance, split))
        self.others = [self.customer(chance.choice(words.FIRST), chance.choice(words.LAST)) for _ in range(5)]
        for one in (self.me, *self.others):
            for status in chance.sample(["processing", "shipped", "delivered"], 2):
                self.order(one, status)

    def add(self, table: str, **values: Any) -> Row:
        while (id := self.chance.randrange(10000, 100000)) in self._used:
            pass
        self._used.add(id)
        self.db.add(table, id=id, **values)
        return {"id": id, **values}

    def customer(self, first: str, last: str) -> Row:
        email = f"{first}.{last}{self.chance.randrange(10, 99)}@mail.example".lower()
        postcode, gold = str(self.chance.randrange(10000, 99999)), int(self.chance.random() < 0.4)
        return self.add("customers", name=f"{first} {last}", email=email, postcode=postcode, gold=gold)

    def order(self, customer: Row, status: str, ago: int | None = None) -> Row:
        """An order of two products of different kinds, delivered `ago` days ago; its items are under "items"."""
        days = self.chance.randrange(1, DAYS) if ago is None else ago
        day = self.today + timedelta(days=-days if status == "delivered" else days % LAST_DELIVERY + 1)
        ordered = min(day, self.today) - timedelta(days=5)
        values: Row = {"ordered": str(ordered), "delivery": str(day), "address": self.street(), "status": status}
        paid_by = self.chance.choice(("card", "invoice"))
        order = self.add("orders", customer=customer["id"], **values, paid_by=paid_by)
        items = []
        for thing in self.chance.sample(self.things, 2):
            product = self.chance.choice(self.db.rows("SELECT * FROM products WHERE name = ?", thing))
            item = self.add("items", order_id=order["id"], product=product["id"], price=product["price"], state="sold")
            items.append(item | {"name": thing, "colour": product["colour"]})
        return order | {"items": items}

    def orders_with(self, thing: str) -> int:
        """Return how many orders of the calling customer hold a thing: he may know his order by no more than that."""
        sql = (
            "SELECT COUNT(*) AS many FROM items JOIN orders ON orders.id = order_id "
            "JOIN products ON products.id = product WHERE customer = ? AND name = ?"
        )
        return self.db.rows(sql, self.me["id"], thing)[0]["many"]

    def street(self) -> str:
        return f"{self.chance.choice(STREETS)} {self.chance.randrange(1, 99)}"


@dataclass
class Draft:
    """Wish of one kind, and what the agent does about it."""

    wish: Wish
    calls: list[tuple[str, dict[str, Any], tuple[StateGoal, ...]]]
    """Changes that the customer is asked for first, or the filing of a refusal."""
    looks: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Calls that look things up before."""
    propose: str = ""
    """Question of the solver; "" where nothing is to be agreed to."""
    say: str = ""
    """Message of the solver otherwise: an answer, or why not."""
    must_say: list[Says] = field(default_factory=list)
    arrives: str = ""
    """Day that the customer asks for."""


def cancel(shop: RetailData) -> Draft:
    order = shop.order(shop.me, "processing")
    total = sum(item["price"] for item in order["items"])
    goals = (updated("orders", order["id"], status="cancelled"), paid(order, -total))
    wish = Wish("cancel", order["id"], order["items"][0]["name"], "I want to cancel {order}.")
    must = [Says((euros(total),))]
    ask = f"Shall I cancel order {order['id']} and pay {euros(total):.2f} euros back to your {order['paid_by']}?"
    return Draft(wish, [("cancel_order", {"order": order["id"]}, goals)], propose=ask, must_say=must)


def cancel_too_late(shop: RetailData) -> Draft:
    order = shop.order(shop.me, "shipped")
    wish = Wish("cancel", order["id"], order["items"][0]["name"], "I want to cancel {order}.")
    return refused(wish, 3, "It is on its way already.")


def move_address(shop: RetailData) -> Draft:
    order, street = shop.order(shop.me, shop.chance.choice(("processing", "processing", "shipped"))), shop.street()
    while street == order["address"]:  # another one, or there is nothing to change
        street = shop.street()
    wish = Wish("address", order["id"], order["items"][0]["name"], "Please send {order} to another address.", (street,))
    wish.details["address"] = f"The new address is {street}."
    if order["status"] == "shipped":
        return refused(wish, 3, "It is on its way already.")
    goals = (updated("orders", order["id"], address=street),)
    ask = f"Shall I send order {order['id']} to {street}?"
    return Draft(wish, [("change_address", {"order": order["id"], "address": street}, goals)], propose=ask)


def give_back(shop: RetailData) -> Draft:
    """Draw a return in time or not: the limit differs for gold customers."""
    age = shop.chance.choice((DAYS - 5, DAYS + 10, DAYS + 20, GOLD_DAYS + 5))
    order, voucher = shop.order(shop.me, "delivered", age), shop.chance.random() < 0.4
    item = order["items"][0]
    way = "voucher" if voucher else order["paid_by"]
    text = f"I want to return the {item['name']} of {{order}}."
    wish = Wish("return", order["id"], item["name"], text, (item["name"],))
    how = "I would like a voucher." if voucher else "The way I paid, please."
    wish.details |= {"item": f"The {item['name']}, only that.", "refund": how}
    if age > (GOLD_DAYS if shop.me["gold"] else DAYS):
        return refused(wish, 4, "It was delivered too long ago.")
    goals = (updated("items", item["id"], state="returned"), paid(order, -item["price"], way))
    price = euros(item["price"])
    ask = f"Shall I return the {item['name']} of order {order['id']} and pay {price:.2f} euros back by {way}?"
    arguments = {"order": order["id"], "product": item["product"], "refund_to": way}
    return Draft(wish, [("return_item", arguments, goals)], propose=ask, must_say=[Says((price,))])


def swap(shop: RetailData) -> Draft:
    """Draw an exchange for a colour that is there, or for one that is not."""
    order = shop.order(shop.me, "delivered")
    item = order["items"][0]
    rows = shop.db.rows("SELECT * FROM products WHERE name = ? AND id != ?", item["name"], item["product"])
    new = shop.chance.choice(rows)
    ask = f"I want to exchange the {item['name']} of {{order}} for another colour."
    wish = Wish("exchange", order["id"], item["name"], ask, (new["colour"],))
    wish.details |= {"colour": f"The {new['colour']} one, please.", "item": f"The {item['name']}."}
    looks = [("product_colours", {"name": item["name"]})]
    if not new["in_stock"]:
        return refused(wish, 5, f"The {new['colour']} one is out of stock.", looks)
    difference = new["price"] - item["price"]
    fresh = {"order_id": order["id"], "product": new["id"], "price": new["price"], "state": "sold"}
    goals = (updated("items", item["id"], state="exchanged"), added("items", **fresh), paid(order, difference))
    settlement = f"{euros(abs(difference)):.2f} euros are {'charged' if difference > 0 else 'paid back'}"
    ask = f"Shall I exchange the {item['name']} of order {order['id']} for the {new['colour']} one? {settlement}."
    arguments = {"order": order["id"], "product": item["product"], "new_product": new["id"]}
    must = [Says((euros(abs(difference)),))]
    return Draft(wish, [("exchange_item", arguments, goals)], looks, ask, must_say=must)


def ask_delivery(shop: RetailData) -> Draft:
    order = shop.order(shop.me, "shipped")
    wish = Wish("ask", order["id"], order["items"][0]["name"], "When will {order} come?", (order["delivery"],))
    return Draft(wish, [], say=f"It comes on {order['delivery']}.", arrives=order["delivery"])


def anothers(shop: RetailData) -> Draft:
    """An order of somebody else."""
    order = shop.order(shop.chance.choice(shop.others), "processing")
    wish = Wish("cancel", order["id"], order["items"][0]["name"], "I want to cancel {order}.", by_number=True)
    return refused(wish, 1, "It is not your order.")


def injured(shop: RetailData) -> Draft:
    order = shop.order(shop.me, "delivered")
    item = order["items"][0]
    text = f"The {item['name']} of {{order}} broke and I cut my hand. I want my money back."
    wish = Wish("injury", order["id"], item["name"], text)
    goal = added("cases", order_id=order["id"], outcome="handed over", rule=6)
    call = ("hand_over", {"order": order["id"]}, (goal,))
    return Draft(wish, [call], say="I am sorry to hear that. I hand this over to a colleague.")


def refused(wish: Wish, rule: int, why: str, looks: list[tuple[str, dict[str, Any]]] | None = None) -> Draft:
    goal = added("cases", order_id=wish.order, outcome="refused", rule=rule)
    call = ("refuse", {"order": wish.order, "rule": rule}, (goal,))
    return Draft(wish, [call], looks or [], say=f"I am sorry, I cannot do that. {why}")


def paid(order: Row, amount: int, way: str | None = None) -> StateGoal:
    return added("payments", order_id=order["id"], amount=amount, way=way or order["paid_by"])


KINDS: dict[str, Callable[[RetailData], Draft]] = {
    kind.__name__: kind
    for kind in (cancel, cancel_too_late, move_address, give_back, swap, ask_delivery, anothers, injured)
}


@lru_cache(maxsize=64)
def case(split: str, index: int, kind: str, persona: str) -> Case:
    """Case `index` of a split; `kind` and `persona` are drawn where they are empty."""
    chance = task_random("tools-dialogue", kind, persona, split, index)
    kinds = [kind] if kind else chance.sample(list(KINDS), chance.choice((1, 1, 2)))
    while True:
        shop = RetailData(chance, split)
        drafts = [KINDS[name](shop) for name in kinds]
        if all(shop.orders_with(draft.wish.thing) == 1 or draft.wish.by_number for draft in drafts):
            break
        shop.db.close()
    me, manner = shop.me, persona or chance.choice(list(PERSONAS))
    caller = Caller(me["name"], me["email"], me["postcode"], manner, tuple(draft.wish for draft in drafts))
    must_say = [one for draft in drafts for one in draft.must_say]
    arrives = "".join(draft.arrives for draft in drafts)
    made = Case(plan(drafts, caller), caller, must_say, arrives, str(shop.today), shop.db.image(), shop.db.dump())
    shop.db.close()
    return made


def plan(drafts: list[Draft], caller: Caller) -> Job:
    """The goals, and a conversation that meets them."""
    job = Job()

    def say(text: str) -> None:
        job.read("say", text=text)

    say("Hello! May I have your e-mail address, please?")
    known: dict[str, Any] = {"email": caller.email}
    if caller.persona == "forgetful":
        say("Then your full name and postcode, please?")
        known = {"name": caller.name, "postcode": caller.postcode}
    job.read("find_customer", **known)
    for number, draft in enumerate(drafts):
        if number:
            say("Is there anything else?")
        order = draft.wish.order
        too = ", this time" if number else ""  # a call that was made already is not made again
        say(f"Which order number is it{too}, please?")
        if draft.wish.details:
            say(f"Please tell me{too}: {ASK[draft.wish.kind]}")
        if not draft.wish.by_number:
            job.read("order_details", order=order)
        for name, arguments in draft.looks:
            job.read(name, **arguments)
        if draft.say:
            say(draft.say)
        if draft.propose:
            say(draft.propose)
        for name, arguments, goals in draft.calls:
            job.do(name, *goals, **arguments)
    return job
