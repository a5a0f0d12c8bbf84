"""Limits on what clients may do: token buckets in bounded memory, and a quota of topics."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from rsnotify_hub.access.clients import client_network, is_loopback
from rsnotify_hub.access.topic_prefixes import granted_ranges
from rsnotify_hub.config.configuration import LimitsConfig
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.refusals import Code, Refusal

#: How many seconds' worth may come at once.
_BURST_SECONDS = 10.0

#: How many clients are remembered; beyond, the client that was quiet for longest is forgotten.
_CLIENTS = 10_000


@dataclass(eq=False, repr=False)
class RateLimiter:
    """Refuses a client that exceeds a rate for long. Requests of this machine are not counted."""

    rate: float
    what: str
    now: Callable[[], float] = monotonic
    clients: int = _CLIENTS

    def __post_init__(self) -> None:
        self._burst = max(1.0, self.rate * _BURST_SECONDS)
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, address: str | None) -> None:
        """Count one request of a client address; a refused one is not counted."""
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


class RateLimits:
    def __init__(self, config: LimitsConfig) -> None:
        self.subscriptions = RateLimiter(config.subscription_rate, "requests to subscribe")
        self.pings = RateLimiter(config.subscription_rate, "pings")
        self.connections = RateLimiter(config.connection_rate, "connections")
        self.tokens = RateLimiter(config.failed_token_rate, "tokens that grant nothing")


class TopicQuota:
    """Bounds the number of topics among those that one token grants, since each has a log."""

    def __init__(self, topics: TopicLogs, limit: int) -> None:
        self._topics = topics
        self._limit = limit

    def check(self, topic: str, prefixes: Sequence[str]) -> None:
        """Check that a topic exists or may begin. Call this just before it begins."""
        if self._topics.knows(topic):
            return
        if self._topics.count(granted_ranges(prefixes)) >= self._limit:
            raise Refusal(
                Code.TOO_MANY,
                f"this hub keeps {self._limit} topics of those that the token grants, and no more",
            )
