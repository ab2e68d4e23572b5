"""Writes the environment's own tasks to `data/`: errands in the storehouse of `stock/stock.py`, drawn from a seed.

python -m agentgym_environments.benchmarks.mcp.make_tasks
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from agentgym_environments.benchmarks.mcp.stock.stock import PAGE, SHELVES, SIZES, SUPPLIERS, Stock

SIZES_OF_SPLITS = {"train": 20, "test": 10}
SERVER = {"command": "python", "folders": ["../stock"], "hidden": ["audit"]}


class Errand(NamedTuple):
    """A task before it is written: text, calls that read, calls that change, and the answer's number."""

    text: str
    reads: list[tuple[str, dict[str, Any]]]
    changes: list[tuple[str, dict[str, Any]]]
    number: int | None = None


def count(stock: Stock, seed: int) -> Errand | None:
    """A sum over items of one size and supplier, without a change."""
    size, supplier = SIZES[seed % 3], SUPPLIERS[seed % 4]
    found = [one for one in stock.items.values() if size in one["name"] and one["supplier"] == supplier]
    text = f"How many units of {size} items from {supplier} are in the storehouse, all together?"
    reads = [("list_items", {"text": size, "supplier": supplier})]
    return Errand(text, reads, [], sum(one["quantity"] for one in found)) if 1 < len(found) <= PAGE else None


def move(stock: Stock, seed: int) -> Errand | None:
    """Everything of one supplier from one shelf to another."""
    supplier, shelf, other = SUPPLIERS[seed % 4], SHELVES[seed % 6], SHELVES[(seed + 1 + seed % 5) % 6]
    found = [sku for sku, one in sorted(stock.items.items()) if one["supplier"] == supplier and one["shelf"] == shelf]
    text = f"Shelf {shelf} is being repaired. Move every item of {supplier} that is on it to shelf {other}."
    reads = [("list_items", {"shelf": shelf, "supplier": supplier})]
    changes = [("move_item", {"sku": sku, "shelf": other}) for sku in found]
    return Errand(text, reads, changes) if found and shelf != other else None


def ship(stock: Stock, seed: int) -> Errand | None:
    """A number of the item that is cheapest on its shelf."""
    shelf, quantity = SHELVES[seed % 6], 2 + seed % 7
    found = sorted((one["price"], sku) for sku, one in stock.items.items() if one["shelf"] == shelf)
    if len(found) < 2 or found[0][0] == found[1][0] or stock.items[found[0][1]]["quantity"] < quantity:
        return None
    text = f"A customer takes {quantity} units of whatever is cheapest on shelf {shelf}. Ship them."
    reads = [("list_items", {"shelf": shelf}), *(("get_item", {"sku": sku}) for _, sku in sorted(found))]
    return Errand(text, reads, [("ship", {"sku": found[0][1], "quantity": quantity})])


def reorder(stock: Stock, seed: int) -> Errand | None:
    """Units that are missing to the minimum, for each item of a shelf."""
    shelf = SHELVES[seed % 6]
    skus = [sku for sku, one in sorted(stock.items.items()) if one["shelf"] == shelf]
    missing = {sku: stock.items[sku]["minimum"] - stock.items[sku]["quantity"] for sku in skus}
    text = (
        f"For each item on shelf {shelf} of which there are fewer units than its minimum, "
        "order as many as are missing to the minimum."
    )
    reads = [("list_items", {"shelf": shelf}), *(("get_item", {"sku": sku}) for sku in skus)]
    changes = [("place_order", {"sku": sku, "quantity": units}) for sku, units in missing.items() if units > 0]
    return Errand(text, reads, changes) if changes and len(skus) <= PAGE else None


def cancel(stock: Stock, seed: int) -> Errand | None:
    """The largest open order."""
    orders = sorted((-one["quantity"], name) for name, one in stock.orders.items())
    if orders[0][0] == orders[1][0]:
        return None
    text = "We have ordered too much. Cancel the open order of the most units, and answer with how many those were."
    return Errand(text, [("list_orders", {})], [("cancel_order", {"order": orders[0][1]})], -orders[0][0])


KINDS: tuple[Callable[[Stock, int], Errand | None], ...] = (count, move, ship, reorder, cancel)


def records(first: int, size: int) -> list[dict[str, Any]]:
    """`size` tasks, the kinds by turns, each with a stock of its own from seed `first` on."""
    found: list[dict[str, Any]] = []
    seed = first
    while len(found) < size:
        stock = Stock(str(seed))
        errand = KINDS[len(found) % len(KINDS)](stock, seed)
        if errand is not None:
            found.append(_record(errand, stock, seed))
        seed += 1
    return found


def _record(errand: Errand, stock: Stock, seed: int) -> dict[str, Any]:
    for name, arguments in errand.changes:
        getattr(stock, name)(**arguments)
    checker: list[dict[str, Any]] = [{"kind": "state", "tool": "audit", "equals": stock.audit()}]
    if errand.number is not None:
        checker.insert(0, {"kind": "answer", "number": errand.number})
    calls = [{"name": name, "arguments": arguments} for name, arguments in errand.reads + errand.changes]
    return {
        "id": f"stock-{seed}",
        "instruction": errand.text,
        "server": {**SERVER, "args": ["stock.py", str(seed)]},
        "checker": checker,
        "solution": {"calls": calls, "answer": "" if errand.number is None else str(errand.number)},
    }


if __name__ == "__main__":
    for place, (split, size) in enumerate(SIZES_OF_SPLITS.items()):
        lines = [json.dumps(one) for one in records(1000 * place, size)]
        Path(__file__).with_name("data").joinpath(f"{split}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
