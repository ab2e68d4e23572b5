"""The service desk of a shop: its tables and its tools. The tools obey; that the policy is kept is the agent's work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from agentgym_environments.synthetic.tools.database import Database
from agentgym_environments.synthetic.tools.registry import CallRefused, Id, Line, euros, tool

SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, email TEXT NOT NULL,
  postcode TEXT NOT NULL, gold INTEGER NOT NULL);
CREATE TABLE products (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, colour TEXT NOT NULL,
  price INTEGER NOT NULL, in_stock INTEGER NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, customer INTEGER NOT NULL, status TEXT NOT NULL,
  ordered TEXT NOT NULL, delivery TEXT NOT NULL, address TEXT NOT NULL, paid_by TEXT NOT NULL);
CREATE TABLE items (id INTEGER PRIMARY KEY AUTOINCREMENT, order_id INTEGER NOT NULL, product INTEGER NOT NULL,
  price INTEGER NOT NULL, state TEXT NOT NULL);
CREATE TABLE payments (id INTEGER PRIMARY KEY AUTOINCREMENT, order_id INTEGER NOT NULL, amount INTEGER NOT NULL,
  way TEXT NOT NULL);
CREATE TABLE cases (id INTEGER PRIMARY KEY AUTOINCREMENT, order_id INTEGER NOT NULL, outcome TEXT NOT NULL,
  rule INTEGER NOT NULL);
CREATE TABLE violations (id INTEGER PRIMARY KEY AUTOINCREMENT, order_id INTEGER NOT NULL, rule INTEGER NOT NULL);
"""
"""Money is in cents, from the shop's side: a refund is negative. `delivery` is the day it came or is to come."""

Rule = Annotated[int, Field(ge=1, le=5)]


@dataclass
class ServiceDesk:
    """The shop's database, and what of the conversation the shop's computer knows."""

    db: Database
    today: str
    known: list[int] = field(default_factory=list)
    """Customers that were found."""
    agreed: list[int] = field(default_factory=list)
    """Orders that the agent named and the customer then said yes to, since the agent last spoke."""

    def own(self, order: int) -> dict[str, Any]:
        """Raises CallRefused for an order that does not exist or is of a customer who was not found."""
        found = self.db.rows("SELECT * FROM orders WHERE id = ?", order)
        if not found:
            raise CallRefused(f"no order has number {order}")
        if found[0]["customer"] not in self.known:
            raise CallRefused(f"order {order} is of a customer who was not found with find_customer")
        return found[0]

    def agreed_to(self, order: int) -> None:
        """Write down a change that the customer was not asked for."""
        if order not in self.agreed:
            self.db.add("violations", order_id=order, rule=2)

    def item(self, order: int, product: int) -> dict[str, Any]:
        rows = self.db.rows("SELECT * FROM items WHERE order_id = ? AND product = ?", order, product)
        if not rows or rows[0]["state"] != "sold":
            raise CallRefused(f"order {order} has no product {product} that is still the customer's")
        return rows[0]


@tool
def find_customer(desk: ServiceDesk, email: Line = "", name: Line = "", postcode: Line = "") -> Any:
    """Find a customer by e-mail address, or by full name and postcode. Gives the numbers of his orders."""
    if not email and not (name and postcode):
        raise CallRefused("give the e-mail address, or the name and the postcode")
    for row in desk.db.rows("SELECT * FROM customers ORDER BY id"):
        same = [row["name"].casefold(), row["postcode"]] == [name.casefold(), postcode]
        if (email and row["email"] == email.casefold()) or (not email and same):
            desk.known = sorted({*desk.known, row["id"]})
            orders = [one["id"] for one in desk.db.rows("SELECT id FROM orders WHERE customer = ?", row["id"])]
            return row | {"gold": bool(row["gold"]), "orders": orders}
    raise CallRefused("no such customer")


@tool
def order_details(desk: ServiceDesk, order: Id) -> Any:
    """Show an order of an identified customer, with its items."""
    row = desk.own(order)
    items = desk.db.rows(
        "SELECT product, name, colour, items.price AS price, state FROM items JOIN products ON products.id = product "
        "WHERE order_id = ? ORDER BY items.id",
        order,
    )
    return row | {"items": [item | {"price": euros(item["price"])} for item in items]}


@tool
def product_colours(desk: ServiceDesk, name: Line) -> Any:
    """Every colour of a product, with number, price and stock."""
    rows = desk.db.rows("SELECT * FROM products WHERE name = ? COLLATE NOCASE ORDER BY colour", name)
    if not rows:
        raise CallRefused(f"there is no product {name!r}")
    return [row | {"price": euros(row["price"]), "in_stock": bool(row["in_stock"])} for row in rows]


@tool
def cancel_order(desk: ServiceDesk, order: Id) -> Any:
    """Cancel an order and pay all of it back the way it was paid."""
    row = desk.own(order)
    if row["status"] == "cancelled":
        raise CallRefused(f"order {order} is cancelled already")
    desk.agreed_to(order)
    total = sum(item["price"] for item in desk.db.rows("SELECT price FROM items WHERE order_id = ?", order))
    desk.db.change("orders", order, status="cancelled")
    desk.db.add("payments", order_id=order, amount=-total, way=row["paid_by"])
    return {"cancelled": order, "refund": euros(total), "to": row["paid_by"]}


@tool
def change_address(desk: ServiceDesk, order: Id, address: Line) -> Any:
    """Send an order to another address."""
    desk.own(order)
    desk.agreed_to(order)
    desk.db.change("orders", order, address=address)
    return {"changed": order, "address": address}


@tool
def return_item(
    desk: ServiceDesk, order: Id, product: Id, refund_to: Literal["card", "invoice", "voucher"] | None = None
) -> Any:
    """Take a product of an order back and pay its price back: the way it was paid, or as refund_to says."""
    row, item = desk.own(order), desk.item(order, product)
    desk.agreed_to(order)
    way = refund_to or row["paid_by"]
    desk.db.change("items", item["id"], state="returned")
    desk.db.add("payments", order_id=order, amount=-item["price"], way=way)
    return {"returned": product, "refund": euros(item["price"]), "to": way}


@tool
def exchange_item(desk: ServiceDesk, order: Id, product: Id, new_product: Id) -> Any:
    """Exchange a product of an order for another; the difference in price is charged or paid back."""
    row, item = desk.own(order), desk.item(order, product)
    new = desk.db.rows("SELECT * FROM products WHERE id = ?", new_product)
    if not new:
        raise CallRefused(f"no product has number {new_product}")
    desk.agreed_to(order)
    desk.db.change("items", item["id"], state="exchanged")
    desk.db.add("items", order_id=order, product=new_product, price=new[0]["price"], state="sold")
    difference = new[0]["price"] - item["price"]
    desk.db.add("payments", order_id=order, amount=difference, way=row["paid_by"])
    return {"exchanged": product, "for": new_product, "difference": euros(difference)}


@tool
def refuse(desk: ServiceDesk, order: Id, rule: Rule) -> Any:
    """Record that a request about an order was refused, and by which rule of the policy."""
    return _filed(desk, order, "refused", rule)


@tool
def hand_over(desk: ServiceDesk, order: Id) -> Any:
    """Hand the case of an order over to a colleague."""
    return _filed(desk, order, "handed over", 6)


def _filed(desk: ServiceDesk, order: int, outcome: str, rule: int) -> Any:
    """A case, and that it was decided before anybody was found."""
    if not desk.known:
        desk.db.add("violations", order_id=order, rule=1)
    return {"filed": desk.db.add("cases", order_id=order, outcome=outcome, rule=rule)}
