"""Which machines may be connected to: those of the public internet, unless its author allows others.

A name is resolved once, and the connection is made to an address that was checked. A name that resolves to another machine a
moment later gains nothing.
"""

from __future__ import annotations

import socket
import threading
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

#: Public addresses of the metadata services of clouds, which hold secrets.
_METADATA = frozenset({ip_address("168.63.129.16")})
_NAT64 = ip_network("64:ff9b::/96")

#: Family and address, as a socket takes them.
SocketAddress = tuple[int, Any]


class HostRefused(Exception):
    """A host cannot be looked up, or may not be connected to. The text is to follow its name, which it does not contain."""


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is public, including any other address embedded in it."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    special = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback
    return address.is_global and not special and not address.is_link_local and address not in _METADATA


def places_of(host: str, port: int, *, allow_private: bool, seconds: float) -> list[SocketAddress]:
    """The allowed addresses of a host; HostRefused if there is none."""
    found = _look_up(host, port, seconds)
    allowed = []
    for family, *_, place in found:
        # Without the zone that a link-local address may have.
        address = ip_address(str(place[0]).partition("%")[0])
        if allow_private or is_public(address):
            allowed.append((int(family), place))
    if not allowed:
        raise HostRefused(
            f"is at {found[0][4][0]}, which is not an address of the public internet; if that is meant, set "
            f"allow_private: true"
        )
    return allowed


def _look_up(host: str, port: int, seconds: float) -> list[tuple[Any, ...]]:
    """Resolve in a thread of its own: the resolver of the system has no timeout."""
    answer: list[Any] = []

    def ask() -> None:
        try:
            answer.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answer.append(error)

    thread = threading.Thread(target=ask, name="holdfast-resolver", daemon=True)
    thread.start()
    thread.join(seconds)
    if not answer:
        raise HostRefused(f"could not be looked up within {seconds:g} s")
    [found] = answer
    if isinstance(found, Exception):
        said = getattr(found, "strerror", None) or str(found)
        raise HostRefused(f"could not be looked up: {said}")
    if not found:
        raise HostRefused("has no address")
    return list(found)
