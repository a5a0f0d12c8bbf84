"""Limits on the number of subscriptions and pending requests, in all, per host and per client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from rsnotify_hub.access.clients import client_network, is_loopback
from rsnotify_hub.cluster.calls import NodeCall
from rsnotify_hub.config.configuration import WebSubConfig
from rsnotify_hub.urls import host_of
from rsnotify_hub.websub.forms import SubscriptionRequest
from rsnotify_hub.websub.registry import SubscriptionRegistry

#: How many requests may be pending: in all, and of one callback host or one client.
MAX_PENDING = 2000
PENDING_SHARE = 200


def client_of(address: str | None) -> str:
    """Return the client whose quota a request counts for; empty for this machine, without one."""
    return "" if address is None or is_loopback(address) else client_network(address)


#: The counters that a pending request has incremented: in all, of its host and of its client, and
#: the same for requests that will become subscriptions.
Reservation = tuple[tuple[str, str], ...]


class QuotaQuestion(Struct, frozen=True):
    """The callback host and the client of a request for a new subscription."""

    host: str
    client: str


class QuotaCounts(Struct, frozen=True):
    """The subscriptions of a node, those included that are being verified."""

    in_all: int = 0
    of_host: int = 0
    of_client: int = 0


NO_COUNTS = QuotaCounts()
#: What each node has of the subscriptions that a request counts with.
QUOTA_COUNTS: NodeCall[QuotaQuestion, QuotaCounts] = NodeCall(
    "websub.quota", QuotaQuestion, QuotaCounts
)


def total_of(counts: Sequence[QuotaCounts]) -> QuotaCounts:
    return QuotaCounts(
        sum(each.in_all for each in counts),
        sum(each.of_host for each in counts),
        sum(each.of_client for each in counts),
    )


class SubscriptionQuota:
    """Counts pending requests, and decides whether another one is accepted."""

    def __init__(self, registry: SubscriptionRegistry, configuration: WebSubConfig) -> None:
        self._registry = registry
        self._in_all = configuration.max_subscriptions
        self._per_host = configuration.subscriptions_per_host
        self._per_client = configuration.subscriptions_per_client
        self._pending: Counter[tuple[str, str]] = Counter()

    def refusal(
        self, request: SubscriptionRequest, client: str, elsewhere: QuotaCounts = NO_COUNTS
    ) -> str | None:
        """Return why a request cannot be accepted now; None if it can.

        Args:
            request: The request.
            client: The client that it counts for.
            elsewhere: What the other nodes have.
        """
        host = host_of(request.callback)
        hosts, clients = self._pending["host", host], self._pending["client", client]
        if self._pending["", ""] >= MAX_PENDING:
            return "too many requests are being verified"
        if hosts >= PENDING_SHARE or (client and clients >= PENDING_SHARE):
            return "too many requests of this callback's host, or of yours, are being verified"
        if not self.is_new(request):
            return None
        found = total_of((self.counts(QuotaQuestion(host, client)), elsewhere))
        if found.in_all >= self._in_all:
            return "there are too many subscriptions at this hub"
        if found.of_host >= self._per_host:
            return "there are too many subscriptions of this callback's host"
        if client and found.of_client >= self._per_client:
            return "there are too many subscriptions that you asked for"
        return None

    def counts(self, question: QuotaQuestion) -> QuotaCounts:
        """Return what this node has."""
        host, client = question.host, question.client
        return QuotaCounts(
            len(self._registry) + self._pending["new", ""],
            self._registry.count_host(host) + self._pending["new host", host],
            self._registry.count_client(client) + self._pending["new client", client],
        )

    def is_new(self, request: SubscriptionRequest) -> bool:
        known = self._registry.find(request.topic, request.callback) is not None
        return request.mode == "subscribe" and not known

    def reserve(self, request: SubscriptionRequest, client: str) -> Reservation:
        """Count a request as pending until `release`."""
        host = host_of(request.callback)
        reservation: Reservation = ("", ""), ("host", host), ("client", client)
        if self.is_new(request):
            reservation += ("new", ""), ("new host", host), ("new client", client)
        self._pending.update(reservation)
        return reservation

    def release(self, reservation: Reservation) -> None:
        for name in reservation:
            self._pending[name] -= 1
            if not self._pending[name]:
                del self._pending[name]
