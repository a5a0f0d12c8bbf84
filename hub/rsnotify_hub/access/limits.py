"""Limits for each client: the rate of expensive requests, and the number of topics."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from rsnotify_hub.access.client_addresses import client_network, is_loopback
from rsnotify_hub.access.grants import granted_ranges
from rsnotify_hub.config.configuration import LimitsConfig
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.topic_log import TopicLogs

#: The burst size, in seconds' worth of requests at the full rate.
_BURST_SECONDS = 10.0

#: Maximum number of clients to track. Beyond it, the least recently active client is forgotten.
_MAX_CLIENTS = 10_000


class RateLimits:
    def __init__(self, config: LimitsConfig) -> None:
        self.subscriptions = RateLimiter(config.subscription_rate, "requests to subscribe")
        self.pings = RateLimiter(config.subscription_rate, "pings")
        self.connections = RateLimiter(config.connection_rate, "connections")
        self.tokens = RateLimiter(config.failed_token_rate, "tokens that grant nothing")


@dataclass(eq=False, repr=False)
class RateLimiter:
    """Refuses a client whose requests exceed a rate and a burst. This machine has no limit."""

    rate: float
    what: str
    now: Callable[[], float] = monotonic
    clients: int = _MAX_CLIENTS

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
            raise Refusal(Code.TOO_MANY, f"too many {self.what}; try again later")
        self._spent[client] = (spent + 1, now)
        self._spent.move_to_end(client)
        if len(self._spent) > self.clients:
            self._spent.popitem(last=False)


class TopicQuota:
    """Limits the number of topics that one token can create, because each topic has a log."""

    def __init__(self, topics: TopicLogs, limit: int) -> None:
        self._topics = topics
        self._limit = limit

    def check(self, topic: str, prefixes: Sequence[str]) -> None:
        """Check that a topic exists or may be created. `prefixes` are those that the token grants.

        Call this just before creating the topic.
        """
        if self._topics.knows(topic):
            return
        if self._topics.count(granted_ranges(prefixes)) >= self._limit:
            raise Refusal(
                Code.TOO_MANY,
                f"the token already has {self._limit} topics, the maximum",
            )
