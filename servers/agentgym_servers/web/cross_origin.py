"""Detection of requests from a web page of another site: such a page must not drive a server that has no keys."""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from agentgym_servers.web.responses import send_error


async def reject_cross_origin(scope: Any, receive: Any, send: Any) -> bool:
    """Refuse a request of a foreign page. Return whether it was one."""
    origin = foreign(scope)
    if origin is None:
        return False
    message = (
        f"a page from {origin[:200]} may not drive this server: only pages of the server's own address may; "
        "other programs send no Origin header"
    )
    await send_error(scope, receive, send, 403, "FORBIDDEN", message)
    return True


def foreign(scope: Any) -> str | None:
    """The `Origin` of a WebSocket handshake or a writing request when it is another host's.

    A name that a stranger points at a loopback address counts as another host: there, only addresses and
    "localhost" are this machine's own. Programs send no `Origin` and pass.
    """
    if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
        return None
    for name, value in scope["headers"]:
        if name == b"origin":
            origin = value.decode("latin-1")
            return None if _same(scope, origin) else origin
    return None


def _same(scope: Any, origin: str) -> bool:
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    try:
        page, here = urlsplit(origin), urlsplit(f"//{host}")
        same = page.hostname == here.hostname and (page.port or _port(page.scheme)) == (here.port or _port(page.scheme))
        own = _is_own_name(page.hostname or "")
    except ValueError:  # not a URL, or no port
        return False
    return same and (own or not _is_loopback((scope.get("server") or ("",))[0]))


def _port(scheme: str) -> int:
    return 443 if scheme in ("https", "wss") else 80


def _is_own_name(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, or a Unix socket
        return False
