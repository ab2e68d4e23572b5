"""The JSON of replies and frames. Parts that are JSON already are put into a whole here, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pydantic_core import from_json, to_json

Fallback = Callable[[Any], Any]


def encode(value: Any, fallback: Fallback | None = None) -> bytes:
    """Return the JSON of a value. Raises ValueError or TypeError for what has none, NaN and infinity among it.

    `fallback` turns what JSON does not know into what it does, or raises TypeError.
    """
    text = to_json(value, fallback=fallback)
    if b"NaN" in text or b"Infinity" in text:  # a number, or a word in a string
        from_json(text, allow_inf_nan=False)
    return text


def extended(body: bytes, fields: dict[str, Any]) -> bytes:
    """Return a JSON object that has fields already, and these after them."""
    return b"%s,%s" % (body[:-1], to_json(fields)[1:])


def answered(body: bytes, session_id: str, step: int, server_ms: float) -> bytes:
    """Return the JSON object of an answer, and after its fields those of its session: without quotes in its id."""
    return b'%s,"session_id":"%s","step":%d,"server_ms":%.3f}' % (body[:-1], session_id.encode(), step, server_ms)


def numbered(index: int, body: bytes) -> bytes:
    """Return the array of an index and a value that is JSON."""
    return b"[%d,%s]" % (index, body)


def wrapped(fields: dict[str, Any], name: str, body: bytes) -> bytes:
    """Return the JSON object of some fields, and after them `name` with JSON as its value."""
    comma = b"," if fields else b""
    return b'%s%s"%s":%s}' % (to_json(fields)[:-1], comma, name.encode(), body)


def array(entries: Iterable[bytes]) -> bytes:
    """Return the array of entries that are JSON."""
    return b"[%s]" % b",".join(entries)
