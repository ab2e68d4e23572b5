"""Notes: a title and a text."""

from __future__ import annotations

from typing import Any

from agentgym_environments.synthetic.tools.apps.desk import AppState, holds
from agentgym_environments.synthetic.tools.registry import Id, Line, Page, Text, page_of, tool


@tool
def notes_search(desk: AppState, text: Line = "", page: Page = 1) -> Any:
    """Titles of the notes that have all the words of text."""
    rows = desk.db.rows("SELECT * FROM notes ORDER BY title, id")
    found = [{"id": row["id"], "title": row["title"]} for row in rows if holds(text, row["title"], row["text"])]
    return page_of(found, page)


@tool
def notes_read(desk: AppState, note: Id) -> Any:
    """A note with its text."""
    return desk.get("notes", note)


@tool
def notes_add(desk: AppState, title: Line, text: Text) -> Any:
    """Write a new note."""
    return {"added": desk.db.add("notes", title=title, text=text)}


@tool
def notes_change(desk: AppState, note: Id, text: Text) -> Any:
    """Replace the whole text of a note."""
    desk.get("notes", note)
    desk.db.change("notes", note, text=text)
    return {"changed": note}


@tool
def notes_delete(desk: AppState, note: Id) -> Any:
    """Delete a note."""
    desk.get("notes", note)
    desk.db.delete("notes", note)
    return {"deleted": note}
