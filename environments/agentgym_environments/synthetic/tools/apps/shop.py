"""Shop: products, a basket, orders, cancelling and returning."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from agentgym_environments.synthetic.tools.apps.bank import balance
from agentgym_environments.synthetic.tools.apps.desk import AppState, holds
from agentgym_environments.synthetic.tools.registry import CallRefused, Id, Line, Page, euros, page_of, tool

SHOP = "Corner Shop"
RETURN_DAYS = 30

Quantity = Annotated[int, Field(ge=1, le=99)]


@tool
def shop_search(desk: AppState, text: Line = "", category: Line = "", page: Page = 1) -> Any:
    """Products whose name or category has all the words of text, by name. Prices are in euros."""
    rows = desk.db.rows("SELECT * FROM products ORDER BY name, id")
    return page_of(
        [
            row | {"price": euros(row["price"]), "in_stock": bool(row["in_stock"])}
            for row in rows
            if holds(text, row["name"], row["category"]) and category.casefold() in ("", row["category"].casefold())
        ],
        page,
    )


@partial(tool, description="What is in the basket.")
def shop_basket(desk: AppState) -> Any:
    rows = desk.db.rows(
        "SELECT basket.id AS line, product, name, price, quantity FROM basket JOIN products ON products.id = product"
    )
    total = sum(row["price"] * row["quantity"] for row in rows)
    return {"lines": [row | {"price": euros(row["price"])} for row in rows], "total": euros(total)}


@tool
def shop_add(desk: AppState, product: Id, quantity: Quantity = 1) -> Any:
    """Put a product into the basket."""
    if not desk.get("products", product)["in_stock"]:
        raise CallRefused(f"product {product} is out of stock")
    return {"line": desk.db.add("basket", product=product, quantity=quantity)}


@tool
def shop_remove(desk: AppState, line: Id) -> Any:
    """Take a line out of the basket."""
    desk.get("basket", line)
    desk.db.delete("basket", line)
    return {"removed": line}


@tool
def shop_checkout(desk: AppState, account: Id) -> Any:
    """Order all that is in the basket and pay it from a bank account."""
    desk.get("accounts", account)
    lines = desk.db.rows("SELECT basket.*, price FROM basket JOIN products ON products.id = product")
    if not lines:
        raise CallRefused("the basket is empty")
    total = sum(line["price"] * line["quantity"] for line in lines)
    if balance(desk, account) < total:
        raise CallRefused(f"account {account} has not the {euros(total)} euros that the basket costs")
    order = desk.db.add("orders", at=desk.now, status="processing", account=account, total=total)
    for line in lines:
        values = {name: line[name] for name in ("product", "quantity", "price")}
        desk.db.add("order_items", order_id=order, returned=0, **values)
        desk.db.delete("basket", line["id"])
    _book(desk, account, -total, order)
    return {"ordered": order, "total": euros(total)}


@tool
def shop_orders(desk: AppState, status: Line = "", page: Page = 1) -> Any:
    """Orders and what is in them, newest first. status: processing, shipped, delivered or cancelled; empty is all."""
    rows = desk.db.rows("SELECT * FROM orders ORDER BY at DESC, id DESC")
    found = page_of([row for row in rows if status.casefold() in ("", row["status"])], page)
    for row in found["found"]:
        row["total"] = euros(row["total"])
        row["items"] = desk.db.rows(
            "SELECT product, name, quantity, returned FROM order_items JOIN products ON products.id = product "
            "WHERE order_id = ? ORDER BY order_items.id",
            row["id"],
        )
    return found


@tool
def shop_cancel(desk: AppState, order: Id) -> Any:
    """Cancel an order that is still processing; the money goes back to the account."""
    row = desk.get("orders", order)
    if row["status"] != "processing":
        raise CallRefused(f"order {order} is {row['status']}: only an order that is processing can be cancelled")
    desk.db.change("orders", order, status="cancelled")
    _book(desk, row["account"], row["total"], order)
    return {"cancelled": order, "refund": euros(row["total"])}


@tool
def shop_return(desk: AppState, order: Id, product: Id) -> Any:
    """Return all of one product of an order delivered at most 30 days ago; the money goes back to the account."""
    row = desk.get("orders", order)
    items = desk.db.rows("SELECT * FROM order_items WHERE order_id = ? AND product = ?", order, product)
    if row["status"] != "delivered":
        raise CallRefused(f"order {order} is {row['status']}: only what was delivered can be returned")
    if (datetime.fromisoformat(desk.now) - datetime.fromisoformat(row["at"])).days > RETURN_DAYS:
        raise CallRefused(f"order {order} is more than {RETURN_DAYS} days old")
    if not items or items[0]["returned"]:
        raise CallRefused(f"order {order} has no product {product} that could be returned")
    refund = items[0]["price"] * items[0]["quantity"]
    desk.db.change("order_items", items[0]["id"], returned=1)
    _book(desk, row["account"], refund, order)
    return {"returned": product, "refund": euros(refund)}


def _book(desk: AppState, account: int, amount: int, order: int) -> None:
    desk.db.add("transactions", account=account, at=desk.now, amount=amount, other=SHOP, reference=f"order {order}")
