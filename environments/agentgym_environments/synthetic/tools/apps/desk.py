"""Base of the apps: the database, the person whose it is, the time, and the tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentgym_environments.synthetic.tools.database import Database
from agentgym_environments.synthetic.tools.registry import CallRefused

SCHEMA = """
CREATE TABLE contacts (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, email TEXT NOT NULL,
  phone TEXT NOT NULL, birthday TEXT NOT NULL);
CREATE TABLE mails (id INTEGER PRIMARY KEY AUTOINCREMENT, folder TEXT NOT NULL, sender TEXT NOT NULL,
  recipient TEXT NOT NULL, subject TEXT NOT NULL, body TEXT NOT NULL, at TEXT NOT NULL, reply_to INTEGER);
CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, start TEXT NOT NULL,
  "end" TEXT NOT NULL, place TEXT NOT NULL, guests TEXT NOT NULL);
CREATE TABLE notes (id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE products (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, category TEXT NOT NULL,
  price INTEGER NOT NULL, rating REAL NOT NULL, in_stock INTEGER NOT NULL);
CREATE TABLE basket (id INTEGER PRIMARY KEY AUTOINCREMENT, product INTEGER NOT NULL, quantity INTEGER NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, status TEXT NOT NULL,
  account INTEGER NOT NULL, total INTEGER NOT NULL);
CREATE TABLE order_items (id INTEGER PRIMARY KEY AUTOINCREMENT, order_id INTEGER NOT NULL, product INTEGER NOT NULL,
  quantity INTEGER NOT NULL, price INTEGER NOT NULL, returned INTEGER NOT NULL);
CREATE TABLE accounts (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, opening INTEGER NOT NULL);
CREATE TABLE payees (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, iban TEXT NOT NULL);
CREATE TABLE transactions (id INTEGER PRIMARY KEY AUTOINCREMENT, account INTEGER NOT NULL, at TEXT NOT NULL,
  amount INTEGER NOT NULL, other TEXT NOT NULL, reference TEXT NOT NULL);
"""
"""Money is in cents; a moment is "YYYY-MM-DD HH:MM"; guests are e-mail addresses joined by ", ", sorted."""

NOUNS = {
    "contacts": "contact",
    "mails": "mail",
    "events": "event",
    "notes": "note",
    "products": "product",
    "basket": "basket line",
    "orders": "order",
    "accounts": "account",
}


@dataclass
class AppState:
    """One person's apps."""

    db: Database
    now: str
    """The moment at which all of the task happens."""
    name: str
    email: str

    def get(self, table: str, id: int) -> dict[str, Any]:
        """Raises CallRefused when there is no such row."""
        found = self.db.rows(f"SELECT * FROM {table} WHERE id = ?", id)
        if not found:
            raise CallRefused(f"no {NOUNS[table]} has id {id}")
        return found[0]


def holds(text: str, *parts: str) -> bool:
    """Return whether every word searched for is in one of the texts, whatever its case."""
    everything = " ".join(parts).casefold()
    return all(word in everything for word in text.casefold().split())
