"""Days in the agent's messages, as people write them: 2026-01-08, 8.1.2026, January 8, the 8th of January."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sept?|oct|nov|dec)[a-z]*\.?"
DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
YEAR = r"(?:,? (\d{4}))?"
ISO = re.compile(r"\b(\d{4})-(\d{1,2})-(\d{1,2})\b")
POINTS = re.compile(r"\b(\d{1,2})\.(\d{1,2})\.(\d{4})\b")
MONTH_FIRST = re.compile(rf"\b{MONTH} (?:the )?{DAY}\b{YEAR}")
DAY_FIRST = re.compile(rf"\b{DAY} (?:of )?{MONTH}{YEAR}")


def days_in(text: str, today: date) -> set[date]:
    """Return the days that a text names. One without a year is the next of that name from `today` on."""
    plain = " ".join(text.casefold().split())
    return {day for parts in _parts(plain) if (day := _day(*parts, today=today))}


def _parts(text: str) -> Iterator[tuple[str, int | str, str]]:
    """Yield year ("" where there is none), month and day."""
    yield from ISO.findall(text)
    yield from ((year, month, day) for day, month, year in POINTS.findall(text))
    yield from ((year, MONTHS.index(month[:3]) + 1, day) for month, day, year in MONTH_FIRST.findall(text))
    yield from ((year, MONTHS.index(month[:3]) + 1, day) for day, month, year in DAY_FIRST.findall(text))


def _day(year: str, month: int | str, day: str, *, today: date) -> date | None:
    """Return a day, None where there is no such one."""
    try:
        if year:
            return date(int(year), int(month), int(day))
        found = date(today.year, int(month), int(day))
        return found if found >= today else found.replace(year=today.year + 1)
    except ValueError:
        return None
