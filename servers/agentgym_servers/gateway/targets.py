"""Request targets that may be sent on to the server of a piped environment."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

DECODINGS = 4
"""Times that a path may be percent-encoded over and over."""
_PLAIN = re.compile(rb"[!-~]*")
"""Visible ASCII: what a request's target is made of."""
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_SEPARATOR = re.compile(rb"[/\\]")


class MalformedTarget(ValueError):
    """A target that is not sent on; the message says why."""


def target_of(path: bytes, query: bytes) -> str:
    """Return the target of a raw path, exactly as the client wrote it. Raises MalformedTarget.

    Refused is what some server may read as another path than the one that is written: dot segments, encoded or not,
    however often, with slashes of either kind or parameters; and control characters, encoded or not.
    """
    target = path + (b"?" + query if query else b"")
    if not _PLAIN.fullmatch(target):
        raise MalformedTarget("a path and its query are visible ASCII characters; percent-encode others")
    if b"#" in target:
        raise MalformedTarget("a request's target has no fragment")
    if _CONTROL.search(unquote_to_bytes(query)):
        raise MalformedTarget("a query has no control characters")
    decoded = path
    for _ in range(DECODINGS):
        if any(_is_dots(segment) for segment in _SEPARATOR.split(decoded)):
            raise MalformedTarget("a path has no dot segments: it stays below the environment's own")
        if _CONTROL.search(decoded):
            raise MalformedTarget("a path has no control characters")
        before, decoded = decoded, unquote_to_bytes(decoded)
        if decoded == before:
            return target.decode("ascii")
    raise MalformedTarget("a path is percent-encoded once")


def _is_dots(segment: bytes) -> bool:
    """Return whether a segment leads elsewhere: dots alone, up to parameters, spaces beside."""
    name = segment.partition(b";")[0].strip(b" ")
    return bool(name) and not name.strip(b".")
