"""Addresses that an environment registered by URL may have: never those that only a cloud machine itself may ask.

Names are looked up here, and what is connected to is the address that was checked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from typing import Any

from agentgym_servers.gateway.errors import AddressRefused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "169.254.169.254"),
    )
)
"""Metadata services of clouds: whoever may ask them gets the machine's credentials."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_TRANSLATED = (ipaddress.ip_network("64:ff9b:1::/48"), ipaddress.ip_network("::ffff:0:0:0/96"))
"""A network's own translation to IPv4 addresses, metadata services among them, in places of its choice."""


class AddressForbidden(ConnectionError):
    """The address may not be asked."""


class Destinations:
    """The addresses that may be asked. `private`: also those of this machine and of private networks."""

    def __init__(self, *, private: bool) -> None:
        self.private = private

    async def resolve(self, host: str, port: int) -> list[tuple[Any, ...]]:
        """Return what `getaddrinfo` says. Raises OSError, AddressForbidden for an address that is not asked."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"{host!r} is no host's name") from error
        for *_, address in found:
            why = self.refusal(str(address[0]))
            if why is not None:
                raise AddressForbidden(f"{host} is {why}")
        return found

    async def require(self, host: str, port: int) -> None:
        """Raises AddressRefused for a host that may not be asked; a host that is not found is somebody else's error."""
        try:
            await self.resolve(host, port)
        except AddressForbidden as error:
            raise AddressRefused(str(error)) from error
        except OSError:
            return

    async def socket(self, host: str, port: int) -> socket.socket:
        """Return a connected socket. Raises OSError."""
        problem: OSError = ConnectionError(f"{host} has no address")
        for family, kind, protocol, _, address in await self.resolve(host, port):
            connection = socket.socket(family, kind, protocol)
            try:
                connection.setblocking(False)
                await asyncio.get_running_loop().sock_connect(connection, address)
            except OSError as error:
                connection.close()
                problem = ConnectionError(f"{host} port {port}: {os.strerror(error.errno or 0)}")
            except BaseException:
                connection.close()
                raise
            else:
                return connection
        raise problem

    def refusal(self, text: str) -> str | None:
        """Return why an address may not be asked, or None."""
        address = _plain(ipaddress.ip_address(text.partition("%")[0]))
        if address.is_link_local or address in METADATA:
            return f"{text}: a link-local or metadata address, which is never asked"
        if address.is_multicast or (address.is_reserved and isinstance(address, ipaddress.IPv4Address)):
            return f"{text}: no server's address"
        if any(address in network for network in _TRANSLATED):
            return f"{text}: an address that is translated to one that is not known here"
        local = not address.is_global or (isinstance(address, ipaddress.IPv6Address) and address.is_site_local)
        if local and not self.private:
            return (
                f"{text}: an address of this machine or of a private network; a gateway that may ask it is started "
                "with `--allow-private-urls`"
            )
        return None


def _plain(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, where it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or (int(address) >> 32 == 0 and int(address) > 1):  # ::a.b.c.d, of old
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
