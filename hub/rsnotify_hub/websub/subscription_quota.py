"""Limits the number of subscriptions and of pending requests, in total, per host and per client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from rsnotify_hub.access.client_addresses import client_network, is_loopback
from rsnotify_hub.config.configuration import WebSubConfig
from rsnotify_hub.store.nodes import NodeCall
from rsnotify_hub.urls import host_of
from rsnotify_hub.websub.forms import SubscriptionRequest
from rsnotify_hub.websub.registry import SubscriptionRegistry

#: Maximum number of pending requests: in total, and per callback host or client.
MAX_PENDING = 2000
MAX_PENDING_SHARE = 200


def client_of(address: str | None) -> str:
    """Return the client that a request counts towards; empty for this machine, without a quota."""
    return "" if address is None or is_loopback(address) else client_network(address)


#: The names of the counters that a pending request has incremented.
Reservation = tuple[tuple[str, str], ...]


class QuotaQuestion(Struct, frozen=True):
    """Asks for the subscriptions that count towards the quotas of this host and client."""

    host: str
    client: str


class QuotaCounts(Struct, frozen=True):
    """The number of a node's subscriptions, including those that are being verified."""

    total: int = msgspec.field(default=0, name="in_all")  # as in earlier versions
    of_host: int = 0
    of_client: int = 0


NO_COUNTS = QuotaCounts()
QUOTA_COUNTS: NodeCall[QuotaQuestion, QuotaCounts] = NodeCall(
    "websub.quota", QuotaQuestion, QuotaCounts
)


def sum_counts(counts: Sequence[QuotaCounts]) -> QuotaCounts:
    return QuotaCounts(
        sum(each.total for each in counts),
        sum(each.of_host for each in counts),
        sum(each.of_client for each in counts),
    )


class SubscriptionQuota:
    """Counts pending requests, and decides whether to accept another one."""

    def __init__(self, registry: SubscriptionRegistry, configuration: WebSubConfig) -> None:
        self._registry = registry
        self._total = configuration.max_subscriptions
        self._per_host = configuration.subscriptions_per_host
        self._per_client = configuration.subscriptions_per_client
        self._pending: Counter[tuple[str, str]] = Counter()

    def refusal(
        self, request: SubscriptionRequest, client: str, elsewhere: QuotaCounts = NO_COUNTS
    ) -> str | None:
        """Return the reason to refuse a request; None if it is within the quotas.

        The request counts towards the quota of `client`. `elsewhere` has the counts of the other
        nodes.
        """
        host = host_of(request.callback)
        hosts, clients = self._pending["host", host], self._pending["client", client]
        if self._pending["", ""] >= MAX_PENDING:
            return "too many requests are being verified"
        if hosts >= MAX_PENDING_SHARE or (client and clients >= MAX_PENDING_SHARE):
            return (
                "too many requests for this callback's host or from your network are being verified"
            )
        if not self.is_new(request):
            return None
        found = sum_counts((self.counts(QuotaQuestion(host, client)), elsewhere))
        if found.total >= self._total:
            return "this hub has too many subscriptions"
        if found.of_host >= self._per_host:
            return "this callback's host has too many subscriptions"
        if client and found.of_client >= self._per_client:
            return "you have too many subscriptions"
        return None

    def counts(self, question: QuotaQuestion) -> QuotaCounts:
        host, client = question.host, question.client
        return QuotaCounts(
            len(self._registry) + self._pending["new", ""],
            self._registry.hosts[host] + self._pending["new host", host],
            self._registry.clients[client] + self._pending["new client", client],
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
