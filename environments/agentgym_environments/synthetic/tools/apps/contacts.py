"""Contacts: people with an address, a phone number and a birthday."""

from __future__ import annotations

from typing import Any

from agentgym_environments.synthetic.tools.apps.desk import AppState, holds
from agentgym_environments.synthetic.tools.registry import Address, Day, Id, Line, Page, page_of, tool


@tool
def contacts_search(desk: AppState, text: Line = "", page: Page = 1) -> Any:
    """Contacts, by name, whose fields have all the words of text."""
    rows = desk.db.rows("SELECT * FROM contacts ORDER BY name, id")
    return page_of([row for row in rows if holds(text, *map(str, row.values()))], page)


@tool
def contacts_add(desk: AppState, name: Line, email: Address, phone: Line = "", birthday: Day | None = None) -> Any:
    """Add a contact."""
    values = {"name": name, "email": email.casefold(), "phone": phone, "birthday": birthday or ""}
    return {"added": desk.db.add("contacts", **values)}


@tool
def contacts_change(
    desk: AppState,
    contact: Id,
    name: Line | None = None,
    email: Address | None = None,
    phone: Line | None = None,
    birthday: Day | None = None,
) -> Any:
    """Change what is given of a contact and leave the rest."""
    old = desk.get("contacts", contact)
    given = {"name": name, "email": email and email.casefold(), "phone": phone, "birthday": birthday}
    new = old | {name: value for name, value in given.items() if value is not None}
    desk.db.change("contacts", contact, **{name: value for name, value in new.items() if name != "id"})
    return {"changed": new}


@tool
def contacts_delete(desk: AppState, contact: Id) -> Any:
    """Delete a contact."""
    desk.get("contacts", contact)
    desk.db.delete("contacts", contact)
    return {"deleted": contact}
