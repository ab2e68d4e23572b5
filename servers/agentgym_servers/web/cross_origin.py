"""Web pages of other sites: they must neither drive nor read a server that has no keys.

A page is known by its `Origin`; one whose name was pointed at this server (DNS rebinding) by `Host`, also where it only
reads.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from agentgym_servers.web.caller import CALLER, RequestCaller
from agentgym_servers.web.connections import address_of
from agentgym_servers.web.responses import send_error

OWN_SUFFIXES = (".localhost", ".local", ".internal", ".svc")
"""Names below which nobody can buy one."""
MAX_NAMES = 1024


class SiteGuard:
    """ASGI middleware: refuses pages of other sites, and says who the caller is.

    `hosts` are further names of the server. Without `origins` only `Host` is checked.
    """

    def __init__(self, app: Any, hosts: Iterable[str] = (), origins: bool = True) -> None:
        self._app, self._names, self._origins = app, ServerNames(hosts), origins

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if self._origins and await reject_cross_origin(scope, receive, send):
            return
        problem = self._names.refusal(scope)
        if problem is not None:
            await send_error(scope, receive, send, 421, "WRONG_HOST", problem)
            return
        CALLER.set(RequestCaller(client_address(scope)))
        await self._app(scope, receive, send)


class ServerNames:
    """Names under which a server may be asked: addresses, localhost, this machine's name, and those it was given.

    Where it is reached from other machines, also names that have no dot or end in one of `OWN_SUFFIXES`: no page can
    have such a name.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._own = {name.lower().rstrip(".") for name in (*names, socket.gethostname())}
        self._known: set[tuple[bytes, str]] = set()
        """`Host` headers that were found to be good, and the address at which they came."""

    def refusal(self, scope: Any) -> str | None:
        """Return why a request's `Host` is not the server's name, or None.

        Programs may leave it out; no browser does.
        """
        here = (scope.get("server") or ("",))[0]
        for name, value in scope["headers"]:
            if name == b"host":
                if (value, here) in self._known:
                    return None
                break
        else:
            return None
        host = host_name(value)
        if host is None or not self._is_name(host, here):
            shown = value[:100].decode("latin-1")
            return (
                f"this server is not called {shown!r}: ask it by its address or as localhost, or start it with "
                "`--allow-host NAME`"
            )
        if len(self._known) < MAX_NAMES:
            self._known.add((value, here))
        return None

    def _is_name(self, host: str, here: str) -> bool:
        if not host or _is_own_name(host) or host in self._own:
            return True
        return not _is_loopback(here) and ("." not in host or host.endswith(OWN_SUFFIXES))


def host_name(header: bytes) -> str | None:
    """Return the host of a `Host` header, in lower case; None for what is none."""
    try:
        parts = urlsplit(f"//{header.decode('ascii')}")
        _ = parts.port  # raises for what is no number
    except ValueError:
        return None
    if parts.path or parts.query or parts.fragment or parts.username is not None:
        return None
    return (parts.hostname or "").rstrip(".")


def client_address(scope: Any) -> str:
    """Return what quotas and limits count a request by."""
    return address_of((scope.get("client") or ("",))[0])


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
