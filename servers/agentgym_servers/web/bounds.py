"""The bounds of every server: what one connection, one address and all of them together may take."""

from __future__ import annotations

import resource
from dataclasses import dataclass

FILES_RESERVED = 64
"""Open files that a server keeps for itself: workers, replicas, a database, logs."""


@dataclass(frozen=True)
class Bounds:
    """Bounds of one server, all of which hold before a key is looked at."""

    head_bytes: int = 16 * 2**10
    """A request's line and headers together; also chunk extensions and trailers between two pieces of a body."""
    line_bytes: int = 8000
    """A request's line or one header."""
    headers: int = 100
    head_s: float = 10.0
    """Seconds from a connection's or request's first moment until its head is complete."""
    body_s: float = 120.0
    """Seconds from a request's first byte until its body is complete; for a WebSocket frame, the same."""
    linger_s: float = 2.0
    """Seconds for which the rest of a body is read after its request was refused; a closed socket is cut after them."""
    idle_s: int = 75
    """Seconds that a connection stays open between two requests."""
    chunks: int = 1024
    """Chunks of one body that may be short, fewer than 64 bytes each on average: each takes as long as a long one."""
    pipelined: int = 64
    """Requests of one connection that wait for the answers before theirs."""
    connections: int = 8192
    """Open connections; less where the process may open fewer files."""
    connections_per_address: int = 6144
    """Open connections of one address; at most three quarters of all."""
    small_bytes: int = 64 * 2**10
    """A half-sent body or frame below this size is not counted in `held_bytes`."""
    held_bytes: int = 256 * 2**20
    """Half-sent bodies and frames of all connections together."""
    unread_bytes: int = 64 * 2**20
    """Replies that wait for a client that does not read, of one connection."""
    unread_s: float = 20.0
    """Seconds without any progress after which such a client is cut."""
    fragments: int = 1024
    """Frames of one WebSocket message."""

    def most_connections(self) -> tuple[int, int]:
        """Return the connections in all and of one address that this process can have open."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY:
            files = self.connections + FILES_RESERVED
        most = max(8, min(self.connections, files - FILES_RESERVED))
        return most, max(6, min(self.connections_per_address, most * 3 // 4))


BOUNDS = Bounds()
