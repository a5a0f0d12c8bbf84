"""The WebSub subscriptions of this hub, and the limits on their number.

`SubscriptionRegistry` finds subscriptions in memory. `SubscriptionUpdates` changes them first in
the store and then in memory, so neither is ahead of the other for long. `SubscriptionQuota` limits
the number of subscriptions and of pending requests, in total, per host and per client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant
from rsnotify_hub.access.limits import client_network, is_loopback
from rsnotify_hub.config.configuration import WebSubConfig
from rsnotify_hub.store.interface import NotOwner, SubscriptionStore
from rsnotify_hub.store.nodes import NodeCall
from rsnotify_hub.subscriptions import Subscription
from rsnotify_hub.urls import authority_of, host_of
from rsnotify_hub.websub.delivery import Delivery
from rsnotify_hub.websub.forms import SubscriptionRequest

#: Maximum number of pending requests: in total, and per callback host or client.
MAX_PENDING = 2000
PENDING_SHARE = 200


class SubscriptionRegistry:
    def __init__(self) -> None:
        self._topics: dict[str, dict[str, Delivery]] = {}
        self._ids: dict[str, Delivery] = {}
        self.hosts: Counter[str] = Counter()
        self.clients: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._ids)

    def all(self) -> list[Delivery]:
        return list(self._ids.values())

    def of_topic(self, topic: str) -> Collection[Delivery]:
        return self._topics.get(topic, {}).values()

    def get(self, id: str) -> Delivery | None:
        return self._ids.get(id)

    def find(self, topic: str, callback: str) -> Delivery | None:
        return self._topics.get(topic, {}).get(callback)

    def add(self, delivery: Delivery) -> None:
        subscription = delivery.subscription
        self._topics.setdefault(subscription.topic, {})[subscription.callback] = delivery
        self._ids[delivery.id] = delivery
        self.hosts[delivery.host] += 1
        self.clients[subscription.client] += 1

    def remove(self, delivery: Delivery) -> None:
        subscription = delivery.subscription
        if self._ids.pop(delivery.id, None) is None:
            return
        group = self._topics[subscription.topic]
        del group[subscription.callback]
        if not group:
            del self._topics[subscription.topic]
        for counts, name in ((self.hosts, delivery.host), (self.clients, subscription.client)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]


class SubscriptionUpdates:
    """Changes subscriptions. A change that fails with a `StorageError` has no effect.

    Theory of operation. Changes to the same subscription are serialized. A change that has waited
    checks the subscription again, because it may have ended or been renewed in the meantime.
    """

    def __init__(self, store: SubscriptionStore, registry: SubscriptionRegistry) -> None:
        self._store = store
        self._registry = registry

    async def put(self, subscription: Subscription) -> Delivery | None:
        """Store or renew a subscription. Return None if it has moved to another node."""
        known = self._registry.find(subscription.topic, subscription.callback)
        renewed = {"secret": subscription.secret, "expires": subscription.expires}
        if known is not None and await self.change(known, **renewed):
            return known
        await self._store.save(subscription)
        # During the save, the shard may have moved to another node, and may even have come back
        # with the stored subscription.
        if not self._store.owns(authority_of(subscription.callback)):
            return None
        acquired = self._registry.find(subscription.topic, subscription.callback)
        if acquired is not None:
            acquired.subscription = replace(acquired.subscription, **renewed)
            return acquired
        new = Delivery(subscription)
        self._registry.add(new)
        return new

    async def change(self, delivery: Delivery, **fields: Any) -> bool:
        """Change fields of a subscription. Return False if it has ended."""
        async with delivery.lock:
            if not self._has(delivery):
                return False
            await self._store.save(replace(delivery.subscription, **fields))
            # The cursor may have moved during the save.
            delivery.subscription = replace(delivery.subscription, **fields)
            return True

    async def end(self, delivery: Delivery, *, lease: Instant | None = None) -> bool:
        """End a subscription. Return False if `lease` is given and has been renewed."""
        async with delivery.lock:
            if not self._has(delivery):
                return True
            subscription = delivery.subscription
            if lease not in (None, subscription.expires):
                return False
            await self._store.delete(subscription.topic, subscription.callback)
            self._registry.remove(delivery)
            return True

    def check_owner(self, callback: str) -> None:
        """Raise `NotOwner` if another node may own the subscriptions of a callback."""
        if not self._store.owns(authority_of(callback)):
            raise NotOwner("another node has the subscriptions of this callback")

    def may_deliver(self, delivery: Delivery) -> bool:
        """Return whether this node owns a subscription right now."""
        return not delivery.is_stopped and self._store.owns(delivery.authority)

    def _has(self, delivery: Delivery) -> bool:
        return self._registry.get(delivery.id) is delivery

    def store_trouble(self, delivery: Delivery) -> None:
        """Store the delivery's trouble if it has changed."""
        trouble = delivery.trouble
        if trouble != delivery.stored_trouble:
            delivery.stored_trouble = trouble
            state = None if trouble is None else msgspec.msgpack.encode(trouble)
            subscription = delivery.subscription
            self._store.note_trouble(subscription.topic, subscription.callback, state)

    def move_cursor(self, delivery: Delivery, position: int) -> None:
        # A renewal may have replaced the subscription, but only the sender changes the position.
        delivery.subscription = replace(delivery.subscription, position=position)
        subscription = delivery.subscription
        self._store.move_cursor(subscription.topic, subscription.callback, position)


def client_of(address: str | None) -> str:
    """Return the client whose quota a request counts against.

    The result is empty for this machine, which has no quota.
    """
    return "" if address is None or is_loopback(address) else client_network(address)


#: The counters that a pending request has incremented: in total, per host and per client, and the
#: same counters for requests that will become subscriptions.
Reservation = tuple[tuple[str, str], ...]


class QuotaQuestion(Struct, frozen=True):
    """The callback host and the client of a request for a new subscription."""

    host: str
    client: str


class QuotaCounts(Struct, frozen=True):
    """The subscription counts of a node, including subscriptions being verified."""

    in_all: int = 0
    of_host: int = 0
    of_client: int = 0


NO_COUNTS = QuotaCounts()
#: Asks each node for the subscription counts that matter to a request's quota.
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
    """Counts pending requests, and decides whether to accept another one."""

    def __init__(self, registry: SubscriptionRegistry, configuration: WebSubConfig) -> None:
        self._registry = registry
        self._in_all = configuration.max_subscriptions
        self._per_host = configuration.subscriptions_per_host
        self._per_client = configuration.subscriptions_per_client
        self._pending: Counter[tuple[str, str]] = Counter()

    def refusal(
        self, request: SubscriptionRequest, client: str, elsewhere: QuotaCounts = NO_COUNTS
    ) -> str | None:
        """Return the reason why a request cannot be accepted now; None if it can.

        The request counts against the quota of `client`. `elsewhere` has the subscription counts of
        the other nodes.
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
