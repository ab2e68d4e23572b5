"""A tool server of a small storehouse, over standard input and output: `python stock.py SEED`.

It needs Python alone. The stock is drawn from SEED; `audit` says what differs from it, for the grader.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

NAMES = (
    "bolts",
    "clamps",
    "cable",
    "filters",
    "gloves",
    "hinges",
    "lamps",
    "paint",
    "pipes",
    "pumps",
    "rope",
    "valves",
)
SIZES = ("small", "medium", "large")
SUPPLIERS = ("Arden Supply", "Bright & Co", "Corvo Trade", "Delta Parts")
SHELVES = ("A1", "A2", "B1", "B2", "C1", "C2")
PAGE = 10


class StockRefusal(Exception):
    """A call that cannot be carried out; the caller reads why."""


class Stock:
    """Items and orders drawn from a seed."""

    def __init__(self, seed: str) -> None:
        chance = random.Random(f"stock/{seed}")
        kinds = [(name, size) for name in NAMES for size in SIZES]
        numbers = chance.sample(range(100, 1000), 24)
        self.items: dict[str, dict[str, Any]] = {}
        for number, (name, size) in zip(numbers, chance.sample(kinds, 24)):
            self.items[f"S{number}"] = {
                "name": f"{size} {name}",
                "shelf": chance.choice(SHELVES),
                "quantity": chance.randint(0, 60),
                "minimum": chance.randint(5, 30),
                "price": chance.randint(100, 9999) / 100,
                "supplier": chance.choice(SUPPLIERS),
            }
        self.orders: dict[str, dict[str, Any]] = {}
        for number in chance.sample(range(100, 1000), 6):
            sku = chance.choice(sorted(self.items))
            self.orders[f"P{number}"] = {"sku": sku, "quantity": chance.randint(5, 80), "status": "open"}
        self.before = json.dumps([self.items, self.orders])

    def list_items(self, shelf: str = "", text: str = "", supplier: str = "", page: int = 1) -> Any:
        found = [
            {"sku": sku, "name": item["name"], "shelf": item["shelf"], "quantity": item["quantity"]}
            for sku, item in sorted(self.items.items())
            if shelf.upper() in ("", item["shelf"])
            and text.lower() in item["name"]
            and supplier.lower() in item["supplier"].lower()
        ]
        pages = max(1, -(-len(found) // PAGE))
        if not 1 <= page <= pages:
            raise StockRefusal(f"there are pages 1 to {pages}")
        return {"items": found[(page - 1) * PAGE : page * PAGE], "page": page, "pages": pages}

    def get_item(self, sku: str) -> Any:
        return {"sku": sku.upper(), **self._item(sku)}

    def move_item(self, sku: str, shelf: str) -> Any:
        if shelf.upper() not in SHELVES:
            raise StockRefusal(f"there is no shelf {shelf!r}; there are {', '.join(SHELVES)}")
        self._item(sku)["shelf"] = shelf.upper()
        return self.get_item(sku)

    def ship(self, sku: str, quantity: int) -> Any:
        item = self._item(sku)
        if not 1 <= quantity <= item["quantity"]:
            raise StockRefusal(f"{sku} has {item['quantity']} units: {quantity} cannot be shipped")
        item["quantity"] -= quantity
        return self.get_item(sku)

    def list_orders(self, status: str = "open") -> Any:
        return {
            "orders": [{"order": name, **one} for name, one in sorted(self.orders.items()) if one["status"] == status]
        }

    def place_order(self, sku: str, quantity: int) -> Any:
        self._item(sku)
        if not 1 <= quantity <= 1000:
            raise StockRefusal("an order is of 1 to 1000 units")
        name = f"N{len(self.orders) + 1}"
        self.orders[name] = {"sku": sku.upper(), "quantity": quantity, "status": "open"}
        return {"order": name, **self.orders[name]}

    def cancel_order(self, order: str) -> Any:
        if order.upper() not in self.orders:
            raise StockRefusal(f"there is no order {order!r}")
        self.orders[order.upper()]["status"] = "cancelled"
        return {"order": order.upper(), **self.orders[order.upper()]}

    def audit(self) -> Any:
        items, orders = json.loads(self.before)
        changed = {
            sku: {field: value for field, value in item.items() if value != items[sku][field]}
            for sku, item in self.items.items()
            if item != items[sku]
        }
        cancelled = sorted(name for name, one in orders.items() if self.orders[name] != one)
        placed = [
            [one["sku"], one["quantity"]]
            for name, one in self.orders.items()
            if name not in orders and one["status"] == "open"
        ]
        return {"items": changed, "cancelled": cancelled, "placed": sorted(placed)}

    def _item(self, sku: str) -> dict[str, Any]:
        if sku.upper() not in self.items:
            raise StockRefusal(f"there is no item {sku!r}")
        return self.items[sku.upper()]


def _tool(name: str, description: str, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"name": name, "description": description, "inputSchema": schema}


TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 1}
TOOLS = (
    _tool("list_items", "Items, ten a page.", shelf=TEXT, text=TEXT, supplier=TEXT, page=COUNT),
    _tool("get_item", "All that is known of an item.", ("sku",), sku=TEXT),
    _tool("move_item", "Put an item on another shelf.", ("sku", "shelf"), sku=TEXT, shelf=TEXT),
    _tool("ship", "Send units of an item away.", ("sku", "quantity"), sku=TEXT, quantity=COUNT),
    _tool(
        "list_orders", "Orders that are open, or cancelled.", status={"type": "string", "enum": ["open", "cancelled"]}
    ),
    _tool("place_order", "Order units of an item from its supplier.", ("sku", "quantity"), sku=TEXT, quantity=COUNT),
    _tool("cancel_order", "Cancel an order.", ("order",), order=TEXT),
    _tool("audit", "Everything that is not as it was at the start."),
)


def call(stock: Stock, name: str, given: dict[str, Any]) -> Any:
    """Carry out a call. Raises StockRefusal for a tool or for arguments that do not exist or do not fit."""
    tool = next((one for one in TOOLS if one["name"] == name), None)
    if tool is None:
        raise StockRefusal(f"there is no tool {name!r}")
    schema = tool["inputSchema"]
    if missing := [one for one in schema["required"] if given.get(one) is None]:
        raise StockRefusal(f"{name} needs {', '.join(missing)}")
    arguments = {}
    for key, value in given.items():
        if key not in schema["properties"]:
            raise StockRefusal(f"{name} has no argument {key!r}; it has {', '.join(schema['properties'])}")
        if value is not None:  # an optional argument that a caller left open
            arguments[key] = _fitting(key, value, schema["properties"][key])
    return getattr(stock, name)(**arguments)


def _fitting(key: str, value: Any, schema: dict[str, Any]) -> Any:
    """Return an argument as its schema has it: a number may come as text."""
    if schema["type"] == "string":
        if not isinstance(value, str) or value not in schema.get("enum", (value,)):
            raise StockRefusal(f"{key} is {' or '.join(schema.get('enum', ('text',)))}, not {value!r}")
        return value.strip()
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise StockRefusal(f"{key} is a whole number of at least 1, not {value!r}")
    return value


def answer(stock: Stock, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a request; None for a method that does not exist."""
    if method == "initialize":
        version = params.get("protocolVersion", "2025-06-18")
        server = {"name": "stock", "version": "1.0.0"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        try:
            result = call(stock, params["name"], params.get("arguments") or {})
        except StockRefusal as reason:
            return {"content": [{"type": "text", "text": str(reason)}], "isError": True}
        return {"content": [{"type": "text", "text": json.dumps(result)}], "structuredContent": result}
    return None


def main(seed: str) -> None:
    stock = Stock(seed)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request or "method" not in request:
            continue
        result = answer(stock, request["method"], request.get("params") or {})
        reply = {"jsonrpc": "2.0", "id": request["id"]}
        if result is None:
            reply["error"] = {"code": -32601, "message": f"there is no method {request['method']}"}
        else:
            reply["result"] = result
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "0")
