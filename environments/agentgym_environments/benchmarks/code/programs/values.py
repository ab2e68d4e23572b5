"""Encode values as JSON that keeps types apart, for a pipe between tests and a submission.

Runs in both sandboxes and imports the standard library alone. What is decoded has built-in types and nothing else: no
class of a submission, and so none of its methods, reaches the tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

DEEPEST, MOST_ITEMS, MOST_BYTES = 60, 300_000, 16 << 20
"""Limits of one value: levels, items, and bytes of its line."""
HEX = re.compile(r"-?[0-9a-f]+")


class NotData(TypeError):
    """A value that cannot be sent."""


def encode(value: Any, handle: Callable[[Any], int | None] = lambda _: None) -> Any:
    """Return `value` as JSON. A subclass of a built-in type is sent as that type.

    handle: returns the number of an object that is sent by its number. Raises NotData.
    """
    left = [MOST_ITEMS]

    def items(values: Any, depth: int) -> list[Any]:
        return [write(one, depth + 1) for one in values]

    def write(one: Any, depth: int) -> Any:
        left[0] -= 1
        if depth > DEEPEST or left[0] < 0:
            raise NotData("a value is nested too deep, or has too many items")
        if one is None or one is True or one is False:
            return one
        if isinstance(one, str):
            return str.__str__(one)
        if (number := handle(one)) is not None:
            return ["o", number]
        for kind, tag, text in SCALARS:
            if isinstance(one, kind):
                return [tag, text(one)]
        for kind, tag in SERIES:
            if isinstance(one, kind):
                return [tag, items(kind.__iter__(one), depth)]
        if isinstance(one, dict):
            return ["d", [[write(key, depth + 1), write(inner, depth + 1)] for key, inner in dict.items(one)]]
        if isinstance(one, Iterator):
            return ["n", items(one, depth)]
        raise NotData(f"a value of type {type(one).__name__} cannot be sent")

    return write(value, 0)


SCALARS: tuple[tuple[type, str, Callable[[Any], str]], ...] = (
    (int, "i", lambda value: format(int.__index__(value), "x")),
    (float, "f", float.hex),
    (complex, "c", lambda value: f"{value.real.hex()} {value.imag.hex()}"),
    (bytes, "b", bytes.hex),
    (bytearray, "a", bytearray.hex),
    (range, "r", lambda value: " ".join(format(part, "x") for part in (value.start, value.stop, value.step))),
)
SERIES: tuple[tuple[Any, str], ...] = ((list, "l"), (tuple, "t"), (set, "s"), (frozenset, "z"))


def decode(value: Any, handle: Callable[[int], Any] | None = None) -> Any:
    """Return the value that `encode` wrote. handle: returns the object of a number.

    Raises ValueError for anything else, TypeError for what cannot be hashed.
    """

    def read(one: Any, depth: int) -> Any:
        if depth > 2 * DEEPEST:
            raise ValueError("nested too deep")
        if one is None or isinstance(one, bool | str):
            return one
        if not isinstance(one, list) or len(one) != 2:
            raise ValueError("not an encoded value")
        tag, content = one
        if tag == "o" and handle is not None and isinstance(content, int):
            return handle(content)
        if tag in ("l", "t", "s", "z", "n") and isinstance(content, list):
            values = [read(inner, depth + 1) for inner in content]
            return values if tag == "l" else {"t": tuple, "s": set, "z": frozenset, "n": iter}[tag](values)
        if tag == "d" and isinstance(content, list):
            return {read(key, depth + 1): read(inner, depth + 1) for key, inner in content}
        if not isinstance(content, str):
            raise ValueError("not an encoded value")
        return scalar(tag, content)

    return read(value, 0)


def scalar(tag: Any, text: str) -> Any:
    if tag == "i":
        return integer(text)
    if tag == "f":
        return float.fromhex(text)
    if tag == "c":
        real, imaginary = text.split(" ")
        return complex(float.fromhex(real), float.fromhex(imaginary))
    if tag == "b":
        return bytes.fromhex(text)
    if tag == "a":
        return bytearray.fromhex(text)
    if tag == "r":
        return range(*map(integer, text.split(" ")))
    raise ValueError("not an encoded value")


def integer(text: str) -> int:
    if HEX.fullmatch(text) is None:
        raise ValueError("not a number")
    return int(text, 16)
