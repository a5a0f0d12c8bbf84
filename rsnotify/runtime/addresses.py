"""The network addresses that untrusted input cannot make rsnotify connect to: all but public ones.

This uses its own table, because for `ipaddress.is_global` NAT64, 6to4 and v4-compatible addresses
are global, although each of them reaches an IPv4 address of the sender's choice.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network

# Only 2000::/3 of IPv6 is global unicast, except for the parts of it below.
_GLOBAL_6 = ip_network("2000::/3")
_REFUSED = [
    (ip_network(network), name)
    for network, name in (
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared (carrier-grade NAT)"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "a cloud's own services, reached from its machines only"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "documentation"),
        ("192.31.196.0/24", "AS112"),
        ("192.52.193.0/24", "AMT"),
        ("192.88.99.0/24", "6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "AS112"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("2001::/23", "reserved for protocols (Teredo among them)"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("2620:4f:8000::/48", "AS112"),
        ("3fff::/20", "documentation"),
    )
]
# The interface identifiers of ISATAP (RFC 5214 §6.1), followed by an IPv4 address.
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)


def refusal(address: str) -> str | None:
    """Return why untrusted input cannot make rsnotify connect to an IP address; None if it can."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return "not an IP address"
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif ip not in _GLOBAL_6:
            return "not a public IPv6 address"
        elif (int(ip) >> 32) & 0xFFFF_FFFF in _ISATAP:
            return "ISATAP"
    return next((name for network, name in _REFUSED if ip in network), None)
