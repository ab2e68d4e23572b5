"""A person's life: contacts, mails, events, notes, products, orders and money, drawn from a random generator.

What a task names is taken from pools, so that two jobs of one task never meet: no two share a contact, a day or a
product.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

from agentgym_environments.base.text_env import split_of
from agentgym_environments.synthetic.tools import words
from agentgym_environments.synthetic.tools.apps.desk import SCHEMA, AppState
from agentgym_environments.synthetic.tools.database import Database

SIZES = {1: (10, 12, 10, 24), 2: (14, 22, 16, 40), 3: (20, 40, 24, 70)}
"""Contacts, mails, events and transactions of a life."""

Row = dict[str, Any]


def somebody(chance: random.Random, split: str) -> tuple[str, str]:
    """First and last name of a person of the split: a name belongs to one split only."""
    while True:
        first, last = chance.choice(words.FIRST), chance.choice(words.LAST)
        if split_of(f"{first} {last}") == split:
            return first, last


class Life:
    """Fills a new database. `take_*` hands out what no other job of the task will name."""

    def __init__(self, chance: random.Random, split: str, size: int) -> None:
        self.chance = chance
        first, last = somebody(chance, split)
        self.today = datetime(2026, 1, 5, 8) + timedelta(days=chance.randrange(700))
        self.me = first
        email = f"{first}.{last}@home.example".lower()
        self.desk = AppState(Database(SCHEMA), self.stamp(self.today), f"{first} {last}", email)
        self._used: set[int] = set()
        contacts, mails, events, transactions = SIZES[size]
        self._people = self._make_contacts(contacts)
        self._days = [self.today + timedelta(days=day) for day in range(1, 13)]
        self._make_events(events)
        self._make_notes()
        self._products = self._make_products()
        self._make_money(transactions)
        self._make_orders()
        self._make_mails(mails)
        for pool in (self._people, self._days, self._products):
            chance.shuffle(pool)
        self._unused = {"mail": list(words.FOLDERS), "merchant": list(words.MERCHANTS), "firm": list(words.FIRMS)}
        self._unused |= {
            "restaurant": list(words.RESTAURANTS),
            "subject": list(words.SUBJECTS[len(words.SUBJECTS) // 2 :]),
        }
        for pool in self._unused.values():
            chance.shuffle(pool)

    # What a job may name.

    def take_person(self) -> Row:
        return self._people.pop()

    def take_day(self) -> str:
        """A day from tomorrow on, YYYY-MM-DD."""
        return self.stamp(self._days.pop())[:10]

    def take_product(self) -> Row:
        """Return the products in stock."""
        return self._products.pop()

    def take_word(self, kind: str) -> str:
        return self._unused[kind].pop()

    # Rows.

    def add(self, table: str, **values: Any) -> Row:
        """A row with an id that cannot be guessed by counting."""
        while (id := self.chance.randrange(1000, 10000)) in self._used:
            pass
        self._used.add(id)
        self.desk.db.add(table, id=id, **values)
        return {"id": id, **values}

    def mail(self, sender: str, subject: str, body: str, folder: str = "inbox", days: float | None = None) -> Row:
        """A mail to the person, `days` ago."""
        ago = self.chance.uniform(0.1, 20) if days is None else days
        values = {"folder": folder, "sender": sender, "recipient": self.desk.email, "subject": subject, "body": body}
        return self.add("mails", **values, at=self.ago(ago), reply_to=None)

    def mail_of(self, person: Row, subject: str, body: str, **more: Any) -> Row:
        return self.mail(f"{person['name']} <{person['email']}>", subject, body, **more)

    def event(self, day: str, start: str, minutes: int, title: str, guests: str = "") -> Row:
        start = f"{day} {start}"
        place = self.chance.choice(words.PLACES)
        end = self.stamp(datetime.fromisoformat(start) + timedelta(minutes=minutes))
        return self.add("events", title=title, start=start, end=end, place=place, guests=guests)

    def free_day(self) -> str:
        """A day without events, those that were there deleted."""
        day = self.take_day()
        for row in self.desk.db.rows("SELECT id FROM events WHERE start LIKE ?", f"{day} %"):
            self.desk.db.delete("events", row["id"])
        return day

    def account(self, name: str) -> int:
        return self.desk.db.rows("SELECT id FROM accounts WHERE name = ?", name)[0]["id"]

    def iban(self) -> str:
        return "DE" + "".join(str(self.chance.randrange(10)) for _ in range(20))

    def phone(self) -> str:
        return f"0{self.chance.randrange(150, 180)} {self.chance.randrange(10**6, 10**7)}"

    def amount(self, low: int, high: int) -> int:
        """Cents, for a range in euros."""
        return self.chance.randrange(low * 100, high * 100)

    def ago(self, days: float) -> str:
        return self.stamp(self.today - timedelta(days=days))

    @staticmethod
    def stamp(moment: datetime) -> str:
        return moment.strftime("%Y-%m-%d %H:%M")

    # A new life.

    def _make_contacts(self, count: int) -> list[Row]:
        """Every second contact shares a first name with the one before: a first name alone is not enough."""
        names: list[str] = []
        firsts = self.chance.sample(words.FIRST, count // 2)
        lasts = iter(self.chance.sample(words.LAST, count))
        for first in firsts:
            names += [f"{first} {next(lasts)}", f"{first} {next(lasts)}"]
        people = []
        for name in names:
            provider = self.chance.choice(("post", "mail", "inbox"))
            email = f"{name.replace(' ', '.').lower()}@{provider}.example"
            born = datetime(1950, 1, 1) + timedelta(days=self.chance.randrange(18000))
            values = {"name": name, "email": email, "phone": self.phone(), "birthday": self.stamp(born)[:10]}
            people.append(self.add("contacts", **values))
        return people

    def _make_events(self, count: int) -> None:
        for _ in range(count):
            day = self.stamp(self.chance.choice(self._days))[:10]
            start = f"{self.chance.randrange(8, 18):02d}:{self.chance.choice(('00', '30'))}"
            self.event(day, start, self.chance.choice((30, 45, 60, 90)), self.chance.choice(words.EVENTS))

    def _make_notes(self) -> None:
        for title, text in self.chance.sample(words.NOTES, 5):
            self.add("notes", title=title, text=text)

    def _make_products(self) -> list[Row]:
        """Make three or four of every kind of thing, which differ by an adjective; about one in six is out of stock."""
        there = []
        for category in self.chance.sample(list(words.CATEGORIES), 3):
            for thing in words.CATEGORIES[category].split():
                for adjective in self.chance.sample(words.ADJECTIVES, self.chance.choice((3, 4))):
                    values: Row = {"name": f"{adjective} {thing}", "category": category}
                    values |= {"price": self.amount(4, 60), "rating": self.chance.randrange(20, 50) / 10}
                    row = self.add("products", **values, in_stock=int(self.chance.random() < 0.85))
                    there += [row] if row["in_stock"] else []
        return there

    def _make_money(self, count: int) -> None:
        for name in ("current", "savings"):
            self.add("accounts", name=name, opening=self.amount(8000, 9000))
        for name in self.chance.sample(words.RESTAURANTS, 3):
            self.add("payees", name=name, iban=self.iban())
        current = self.account("current")
        for _ in range(count):
            merchant = self.chance.choice(words.MERCHANTS)
            values: Row = {"other": merchant, "reference": f"card {self.chance.randrange(10**5)}"}
            at = self.ago(self.chance.uniform(1, 75))
            self.add("transactions", account=current, at=at, amount=-self.amount(3, 90), **values)

    def _make_orders(self) -> None:
        self.chance.shuffle(self._products)
        for status in ("delivered", "delivered", "shipped", "processing", "cancelled"):
            self.order(status, [self._products.pop()])

    def order(self, status: str, products: list[Row], days: int | None = None) -> Row:
        """An order paid from the current account; its items are under "items"."""
        account = self.account("current")
        days = days or self.chance.randrange(2, 25)
        counts = [self.chance.choice((1, 1, 2)) for _ in products]
        total = sum(product["price"] * count for product, count in zip(products, counts))
        order = self.add("orders", at=self.ago(days), status=status, account=account, total=total)
        items = []
        for product, count in zip(products, counts):
            values = {"product": product["id"], "quantity": count, "price": product["price"]}
            items.append(self.add("order_items", order_id=order["id"], **values, returned=0))
        return order | {"items": items}

    def _make_mails(self, count: int) -> None:
        for _ in range(count):
            person, subject = (
                self.chance.choice(self._people),
                self.chance.choice(words.SUBJECTS[: len(words.SUBJECTS) // 2]),
            )
            body = self.chance.choice(words.BODIES).format(me=self.me, them=person["name"].split()[0])
            folder = self.chance.choice(("inbox", "inbox", *words.FOLDERS))
            self.mail_of(person, subject, body, folder=folder)
        for folder in words.FOLDERS:
            self.mail_of(self.chance.choice(self._people), "Keep this", "For your files.", folder=folder, days=60)
