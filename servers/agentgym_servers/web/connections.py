"""The open connections of a server: counted in all and by address, and looked through for those that hold it up."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
from collections import Counter
from dataclasses import dataclass
from typing import Any, Protocol

from agentgym.protocol import WireError
from agentgym_servers.web.bounds import BOUNDS, Bounds

SWEEP_S = 0.5
PROGRESS = 64 * 2**10
"""Bytes that a client must read in `Bounds.unread_s`."""

_PHRASES = {
    400: "Bad Request",
    408: "Request Timeout",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


@dataclass(frozen=True)
class Refusal:
    """An answer to a request that never reaches the application."""

    status: int
    code: str
    message: str

    def http(self) -> bytes:
        """The response, after which the connection is closed."""
        body = WireError(code=self.code, message=self.message).model_dump_json().encode()
        again = "retry-after: 1\r\n" if self.status in (429, 503) else ""
        head = (
            f"HTTP/1.1 {self.status} {_PHRASES[self.status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n{again}connection: close\r\n\r\n"
        )
        return head.encode() + body


class Watched(Protocol):
    """A connection's protocol, as the sweep sees it."""

    def check(self, now: float) -> None:
        """End the connection if it has been half-sent for too long."""
        ...

    def cut(self, why: str) -> None:
        """End the connection of a client that does not read."""
        ...


@dataclass
class _Entry:
    address: str
    watched: Watched
    unread: int = 0
    """Bytes that waited to be sent when the client last read some."""
    since: float = 0.0


class Connections:
    """The connections of one server. Belongs to one event loop."""

    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self.bounds = bounds
        self.held = 0
        """Bytes of half-sent bodies and frames."""
        self._most, self._most_per_address = bounds.most_connections()
        self._open: dict[Any, _Entry] = {}
        self._by_address: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, transport: Any, watched: Watched) -> Refusal | None:
        """Count a connection, or note that it speaks another protocol now. Return why it is refused."""
        if transport in self._open:
            self._open[transport].watched = watched
            return None
        address = address_of((transport.get_extra_info("peername") or ("",))[0])
        refusal = None
        if len(self._open) >= self._most:
            message = f"all {self._most} connections of this server are taken; ask again later"
            refusal = Refusal(503, "TOO_MANY_CONNECTIONS", message)
        elif self._by_address[address] >= self._most_per_address:
            message = f"one address may have {self._most_per_address} connections to this server; close some of yours"
            refusal = Refusal(429, "TOO_MANY_CONNECTIONS", message)
        self._open[transport] = _Entry(address, watched)
        self._by_address[address] += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        return refusal

    def remove(self, transport: Any) -> None:
        """A connection has ended."""
        entry = self._open.pop(transport, None)
        if entry is None:
            return
        self._by_address[entry.address] -= 1
        if not self._by_address[entry.address]:
            del self._by_address[entry.address]
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def room_for(self, size: int) -> bool:
        """Return whether a half-sent body or frame of so many bytes may go on."""
        return size <= self.bounds.small_bytes or self.held <= self.bounds.held_bytes

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer, now = loop.call_later(SWEEP_S, self._sweep), loop.time()
        for transport, entry in list(self._open.items()):
            entry.watched.check(now)
            unread = transport.get_write_buffer_size()
            if not unread or unread <= entry.unread - PROGRESS or not entry.unread:
                entry.unread, entry.since = unread, now
            elif now - entry.since > self.bounds.unread_s:
                entry.watched.cut(f"the client has read nothing for {self.bounds.unread_s:g} s")


@functools.lru_cache(maxsize=4096)
def address_of(host: str) -> str:
    """Return what counts as one address: an IPv4 address, or the network of an IPv6 one that its user chooses from."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:  # a Unix socket
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
