"""Bank: accounts, transactions, payees, payments. A balance is the sum of what was booked, so no row holds it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import Field

from agentgym_environments.synthetic.tools.apps.desk import AppState, holds
from agentgym_environments.synthetic.tools.registry import (
    CallRefused,
    Day,
    Id,
    Line,
    Money,
    Page,
    cents,
    euros,
    page_of,
    tool,
)

Iban = Annotated[str, Field(pattern=r"^[A-Z]{2}[0-9]{8,30}$", description="without spaces")]


@tool
def bank_accounts(desk: AppState) -> Any:
    """The accounts and their balances in euros."""
    rows = desk.db.rows("SELECT id, name FROM accounts ORDER BY id")
    return [row | {"balance": euros(balance(desk, row["id"]))} for row in rows]


@tool
def bank_transactions(
    desk: AppState, text: Line = "", since: Day | None = None, until: Day | None = None, page: Page = 1
) -> Any:
    """Transactions, newest first, whose other party or reference has all the words of text, from the day since to the
    day until. Money spent is negative."""
    rows = desk.db.rows("SELECT * FROM transactions ORDER BY at DESC, id DESC")
    found = [
        row | {"amount": euros(row["amount"])}
        for row in rows
        if holds(text, row["other"], row["reference"])
        and (since or "") <= row["at"]
        and (until is None or row["at"][:10] <= until)
    ]
    return page_of(found, page)


@partial(tool, description="List the payees to whom money can be sent.")
def bank_payees(desk: AppState, text: Line = "") -> Any:
    return [row for row in desk.db.rows("SELECT * FROM payees ORDER BY name, id") if holds(text, row["name"])]


@tool
def bank_add_payee(desk: AppState, name: Line, iban: Iban) -> Any:
    """Add a payee."""
    if desk.db.rows("SELECT id FROM payees WHERE iban = ?", iban):
        raise CallRefused(f"{iban} is a payee already")
    return {"added": desk.db.add("payees", name=name, iban=iban)}


@tool
def bank_pay(desk: AppState, account: Id, iban: Iban, amount: Money, reference: Line) -> Any:
    """Send money from an account to a payee (see bank_payees; add a new one first)."""
    payees = desk.db.rows("SELECT * FROM payees WHERE iban = ?", iban)
    if not payees:
        raise CallRefused(f"{iban} is no payee: add it with bank_add_payee")
    return {"paid": _book(desk, account, -_covered(desk, account, amount), payees[0]["name"], reference)}


@tool
def bank_move(desk: AppState, source: Id, target: Id, amount: Money) -> Any:
    """Move money between two of the accounts."""
    one, other = desk.get("accounts", source), desk.get("accounts", target)
    if source == target:
        raise CallRefused("the accounts are the same")
    moved = _covered(desk, source, amount)
    _book(desk, source, -moved, other["name"], "moved")
    _book(desk, target, moved, one["name"], "moved")
    return {"moved": euros(moved)}


def balance(desk: AppState, account: int) -> int:
    """Return cents. Raises CallRefused when there is no such account."""
    opening = desk.get("accounts", account)["opening"]
    rows = desk.db.rows("SELECT COALESCE(SUM(amount), 0) AS booked FROM transactions WHERE account = ?", account)
    return opening + rows[0]["booked"]


def _covered(desk: AppState, account: int, amount: float) -> int:
    """The amount in cents. Raises CallRefused when the account has less."""
    wanted = cents(amount)
    if balance(desk, account) < wanted:
        raise CallRefused(f"account {account} has only {euros(balance(desk, account))} euros")
    return wanted


def _book(desk: AppState, account: int, amount: int, other: str, reference: str) -> int:
    return desk.db.add("transactions", account=account, at=desk.now, amount=amount, other=other, reference=reference)
