"""short, cut, stretches: numbers, texts and lists as short as a page wants them."""

from __future__ import annotations

import itertools

TEXT = 20_000
"""Characters of an observation or reply at most."""


def short(value: float | None) -> float | None:
    """Five significant digits: what a page can show."""
    return None if value is None else float(f"{value:.5g}")


def cut(text: str, limit: int = TEXT) -> str:
    """Its first `limit` characters, and how many there are more."""
    return text if len(text) <= limit else f"{text[:limit]}\n… {len(text) - limit} more characters"


def stretches(length: int, count: int) -> list[range]:
    """`range(length)` in at most `count` stretches, none empty."""
    count = min(length, count)
    edges = [length * i // count for i in range(count + 1)] if count else []
    return [range(a, b) for a, b in itertools.pairwise(edges)]
