"""The client address of a request, also behind proxies, and the network that counts as a client."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_FOR = re.compile(r'(?:^|[;\s])for="?([^";,\s]+)"?', re.IGNORECASE)
_PORT = re.compile(r"^\[([^\]]+)\](?::\d+)?$|^([\d.]+):\d+$")

#: The bits of an IPv6 address that are the network of one client.
_IPV6_PREFIX = 64


def client_network(address: str) -> str:
    """Return the network that counts as one client: an IPv4 address, or a /64 of IPv6."""
    ip = _ip_of(address)
    if ip is None:
        return address
    if isinstance(ip, IPv4Address):
        return str(ip)
    return str(ip_network((int(ip), _IPV6_PREFIX), strict=False))


def is_loopback(address: str) -> bool:
    ip = _ip_of(address)
    return ip is not None and ip.is_loopback


def _ip_of(address: str) -> IPv4Address | IPv6Address | None:
    """Parse an address, with or without a zone; an IPv4-mapped address gives its IPv4 address."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return (ip.ipv4_mapped or ip) if isinstance(ip, IPv6Address) else ip


class TrustedProxies:
    """The proxies whose forwarding header is trusted: `X-Forwarded-For` or `Forwarded`.

    The other header is ignored, since a proxy passes on what a client wrote there.
    """

    def __init__(self, networks: Sequence[str], header: str) -> None:
        self._networks = [ip_network(network) for network in networks]
        self._header = header

    def trusts(self, address: str) -> bool:
        ip = _ip_of(address)
        return ip is not None and any(ip in network for network in self._networks)

    def client(self, peer: str, headers: Iterable[tuple[str, str]]) -> str:
        """Return the address of the client that a proxy acts for.

        Each proxy appends the address of its peer. So the last address that is not a trusted
        proxy's is the client; the client may have made up the ones before it.
        """
        name = self._header.lower()
        values = [value for field, value in headers if field.lower() == name]
        chain = [peer, *reversed(self._addresses(",".join(values)))]
        return next((each for each in chain if not self.trusts(each)), chain[-1])

    def _addresses(self, value: str) -> list[str]:
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if self._header == "Forwarded":
            parts = [found.group(1) if (found := _FOR.search(part)) else "" for part in parts]
        return [_without_port(part) for part in parts]


def _without_port(text: str) -> str:
    match = _PORT.match(text)
    return (match.group(1) or match.group(2)) if match else text
