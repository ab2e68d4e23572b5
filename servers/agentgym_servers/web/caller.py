"""The sender of the request that is being handled: quotas count sessions by it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


class RequestCaller(NamedTuple):
    """The sender of a request or frame."""

    address: str = ""
    key: str | None = None
    """The id of its API key, where it needed one."""


NOBODY = RequestCaller()
CALLER: ContextVar[RequestCaller] = ContextVar("caller", default=NOBODY)
"""Set for each request; a socket's handler sets it again for its frames."""
