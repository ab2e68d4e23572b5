"""Calendar: events with a beginning, an end, a place and guests."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from agentgym_environments.synthetic.tools.apps.desk import AppState, holds
from agentgym_environments.synthetic.tools.registry import (
    Address,
    CallRefused,
    Day,
    Id,
    Line,
    Moment,
    Page,
    page_of,
    tool,
)

Guests = Annotated[list[Address], Field(max_length=20, description="e-mail addresses")]


@tool
def calendar_day(desk: AppState, day: Day) -> Any:
    """All events of a day, earliest first."""
    rows = desk.db.rows("SELECT * FROM events WHERE start LIKE ? ORDER BY start, id", f"{day} %")
    return {"day": day, "events": [_shown(row) for row in rows]}


@tool
def calendar_search(desk: AppState, text: Line = "", since: Day | None = None, page: Page = 1) -> Any:
    """Events, earliest first, whose title, place or guests have all the words of text; since leaves out days before."""
    rows = desk.db.rows("SELECT * FROM events WHERE start >= ? ORDER BY start, id", since or "")
    return page_of([_shown(row) for row in rows if holds(text, row["title"], row["place"], row["guests"])], page)


@tool
def calendar_add(desk: AppState, title: Line, start: Moment, end: Moment, place: Line = "", guests: Guests = []) -> Any:  # noqa: B006
    """Add an event. Guests are not notified: send them a mail if they should know."""
    values = {"title": title, "start": start, "end": end, "place": place, "guests": _joined(guests)}
    _require_times(start, end)
    return {"added": desk.db.add("events", **values)}


@tool
def calendar_change(
    desk: AppState,
    event: Id,
    title: Line | None = None,
    start: Moment | None = None,
    end: Moment | None = None,
    place: Line | None = None,
    guests: Guests | None = None,
) -> Any:
    """Change what is given of an event and leave the rest. A new start does not move the end: give both."""
    old = desk.get("events", event)
    given = {"title": title, "start": start, "end": end, "place": place}
    given["guests"] = None if guests is None else _joined(guests)
    new = old | {name: value for name, value in given.items() if value is not None}
    _require_times(new["start"], new["end"])
    desk.db.change("events", event, **{name: value for name, value in new.items() if name != "id"})
    return {"changed": _shown(new)}


@tool
def calendar_delete(desk: AppState, event: Id) -> Any:
    """Delete an event."""
    desk.get("events", event)
    desk.db.delete("events", event)
    return {"deleted": event}


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"guests": row["guests"].split(", ") if row["guests"] else []}


def _joined(guests: list[str]) -> str:
    return ", ".join(sorted({guest.casefold() for guest in guests}))


def _require_times(start: str, end: str) -> None:
    try:
        moments = [datetime.strptime(moment, "%Y-%m-%d %H:%M") for moment in (start, end)]
    except ValueError:
        raise CallRefused(f"{start} to {end}: there is no such moment") from None
    if moments[0] >= moments[1]:
        raise CallRefused(f"an event that starts at {start} cannot end at {end}")
