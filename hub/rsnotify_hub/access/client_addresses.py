"""Which client a request comes from: its address, even behind proxies, and its network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

#: Length in bits of the IPv6 prefix that counts as one client.
_IPV6_PREFIX_BITS = 64

_CACHED_ADDRESSES = 10_000

_FORWARDED = re.compile(r'(?:^|[;\s])for="?([^";,\s]+)"?', re.IGNORECASE)
_ADDRESS_AND_PORT = re.compile(r"^\[([^\]]+)\](?::\d+)?$|^([\d.]+):\d+$")


def client_network(address: str) -> str:
    """Return the network that counts as one client: an IPv4 address or an IPv6 /64."""
    ip = _parse_ip(address)
    if ip is None:
        return address
    if isinstance(ip, IPv4Address):
        return str(ip)
    return str(ip_network((int(ip), _IPV6_PREFIX_BITS), strict=False))


def is_loopback(address: str) -> bool:
    ip = _parse_ip(address)
    return ip is not None and ip.is_loopback


@lru_cache(_CACHED_ADDRESSES)
def _parse_ip(address: str) -> IPv4Address | IPv6Address | None:
    """Parse an address, ignoring any zone. Convert an IPv4-mapped address to IPv4."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return (ip.ipv4_mapped or ip) if isinstance(ip, IPv6Address) else ip


class TrustedProxies:
    """Reverse proxies whose `X-Forwarded-For` or `Forwarded` header is trusted.

    The other header is ignored, because a proxy forwards it unchanged from the client.
    """

    def __init__(self, networks: Sequence[str], header: str) -> None:
        self._networks = [ip_network(network) for network in networks]
        self._header = header

    def trusts(self, address: str) -> bool:
        ip = _parse_ip(address)
        return ip is not None and any(ip in network for network in self._networks)

    def client(self, peer: str, headers: Iterable[tuple[str, str]]) -> str:
        """Return the address of the client that a proxy acts for.

        Each proxy appends the address of its peer, so the client is the last address that does not
        belong to a trusted proxy. The client may have forged all earlier addresses.
        """
        name = self._header.lower()
        values = [value for field, value in headers if field.lower() == name]
        chain = [peer, *reversed(self._addresses(",".join(values)))]
        return next((each for each in chain if not self.trusts(each)), chain[-1])

    def _addresses(self, value: str) -> list[str]:
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if self._header == "Forwarded":
            parts = [found.group(1) if (found := _FORWARDED.search(part)) else "" for part in parts]
        return [_without_port(part) for part in parts]


def _without_port(text: str) -> str:
    match = _ADDRESS_AND_PORT.match(text)
    return (match.group(1) or match.group(2)) if match else text
