"""Limits on clients: who counts as one client, even behind proxies, and how much each may do.

A prefix grants topics, which are compared byte for byte, as subscribers name them. But the hub
fetches topics, and servers and clients resolve dot segments and decode escapes. Therefore no prefix
grants a topic with a dot segment, in any spelling.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from time import monotonic

from rsnotify_hub.config.configuration import LimitsConfig
from rsnotify_hub.log.topic_log import TopicLogs
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.urls import has_dot_segments

#: The length of the IPv6 prefix that counts as one client, in bits.
_IPV6_PREFIX = 64

#: The burst size, in seconds' worth of requests at the full rate.
_BURST_SECONDS = 10.0

#: Maximum number of clients remembered. Beyond it, the least recently active one is forgotten.
_CLIENTS = 10_000

_FOR = re.compile(r'(?:^|[;\s])for="?([^";,\s]+)"?', re.IGNORECASE)
_PORT = re.compile(r"^\[([^\]]+)\](?::\d+)?$|^([\d.]+):\d+$")


def client_network(address: str) -> str:
    """Return the network that counts as one client: an IPv4 address or an IPv6 /64."""
    ip = _ip_of(address)
    if ip is None:
        return address
    if isinstance(ip, IPv4Address):
        return str(ip)
    return str(ip_network((int(ip), _IPV6_PREFIX), strict=False))


def is_loopback(address: str) -> bool:
    ip = _ip_of(address)
    return ip is not None and ip.is_loopback


@lru_cache(_CLIENTS)
def _ip_of(address: str) -> IPv4Address | IPv6Address | None:
    """Parse an address, with or without a zone. Convert an IPv4-mapped address to IPv4."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return (ip.ipv4_mapped or ip) if isinstance(ip, IPv6Address) else ip


class TrustedProxies:
    """The proxies whose forwarding header is trusted: `X-Forwarded-For` or `Forwarded`.

    The other header is ignored, because a proxy passes on whatever a client wrote there.
    """

    def __init__(self, networks: Sequence[str], header: str) -> None:
        self._networks = [ip_network(network) for network in networks]
        self._header = header

    def trusts(self, address: str) -> bool:
        ip = _ip_of(address)
        return ip is not None and any(ip in network for network in self._networks)

    def client(self, peer: str, headers: Iterable[tuple[str, str]]) -> str:
        """Return the address of the client that a proxy acts for.

        Each proxy appends the address of its peer. The client is therefore the last address that
        does not belong to a trusted proxy. The client may have forged the addresses before it.
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


class RateLimits:
    def __init__(self, config: LimitsConfig) -> None:
        self.subscriptions = RateLimiter(config.subscription_rate, "requests to subscribe")
        self.pings = RateLimiter(config.subscription_rate, "pings")
        self.connections = RateLimiter(config.connection_rate, "connections")
        self.tokens = RateLimiter(config.failed_token_rate, "tokens that grant nothing")


@dataclass(eq=False, repr=False)
class RateLimiter:
    """Refuses a client that exceeds a rate for too long. Exempts requests from this machine."""

    rate: float
    what: str
    now: Callable[[], float] = monotonic
    clients: int = _CLIENTS

    def __post_init__(self) -> None:
        self._burst = max(1.0, self.rate * _BURST_SECONDS)
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, address: str | None) -> None:
        """Count one request from a client address, or refuse it without counting it."""
        if address is None or is_loopback(address):
            return
        client, now = client_network(address), self.now()
        spent, before = self._spent.get(client, (0.0, now))
        spent = max(0.0, spent - (now - before) * self.rate)
        if spent + 1 > self._burst:
            raise Refusal(Code.TOO_MANY, f"too many {self.what}; come back later")
        self._spent[client] = (spent + 1, now)
        self._spent.move_to_end(client)
        if len(self._spent) > self.clients:
            self._spent.popitem(last=False)


class TopicQuota:
    """Limits how many of the topics that one token grants may exist, because each has a log."""

    def __init__(self, topics: TopicLogs, limit: int) -> None:
        self._topics = topics
        self._limit = limit

    def check(self, topic: str, prefixes: Sequence[str]) -> None:
        """Check that a topic exists or may be created. Call this just before creating it."""
        if self._topics.knows(topic):
            return
        if self._topics.count(granted_ranges(prefixes)) >= self._limit:
            raise Refusal(
                Code.TOO_MANY,
                f"this hub keeps {self._limit} topics of those that the token grants, and no more",
            )


def is_granted(prefix: str, topic: str) -> bool:
    """Return whether a topic equals the prefix or is below it: `/a` grants `/a/b`, never `/ab`."""
    if not topic.startswith(prefix):
        return False
    if topic != prefix and not prefix.endswith("/") and topic[len(prefix)] not in "/?":
        return False
    return not has_dot_segments(topic)


def covers(prefixes: Iterable[str], topic: str) -> bool:
    return any(is_granted(prefix, topic) for prefix in prefixes)


def granted_ranges(prefixes: Sequence[str]) -> list[tuple[str, str]]:
    """Return the ranges of names that the prefixes grant, in order and without overlaps.

    A range consists of its first name and its end (exclusive).
    """
    found: list[tuple[str, str]] = []
    for begin, end in sorted(each for prefix in prefixes for each in _ranges(prefix)):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _ranges(prefix: str) -> list[tuple[str, str]]:
    if prefix.endswith("/"):
        return [(prefix, prefix[:-1] + "0")]  # "0" is the character after "/"
    return [(prefix, prefix + "\0"), (prefix + "/", prefix + "0"), (prefix + "?", prefix + "@")]
