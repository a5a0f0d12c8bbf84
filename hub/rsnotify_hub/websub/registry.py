"""The WebSub subscriptions of this node, in memory, and changes to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant
from rsnotify_hub.access.client_addresses import client_network, is_loopback
from rsnotify_hub.config.configuration import WebSubConfig
from rsnotify_hub.store.interface import NotOwner, SubscriptionStore
from rsnotify_hub.store.nodes import NodeCall
from rsnotify_hub.urls import authority_of, host_of
from rsnotify_hub.websub.callback_subscriber import CallbackSubscriber
from rsnotify_hub.websub.forms import SubscriptionRequest
from rsnotify_hub.websub_subscription import Subscription

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


class SubscriptionRegistry:
    def __init__(self) -> None:
        self._topics: dict[str, dict[str, CallbackSubscriber]] = {}
        self._ids: dict[str, CallbackSubscriber] = {}
        self.hosts: Counter[str] = Counter()
        self.clients: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._ids)

    def all(self) -> list[CallbackSubscriber]:
        return list(self._ids.values())

    def of_topic(self, topic: str) -> Collection[CallbackSubscriber]:
        return self._topics.get(topic, {}).values()

    def get(self, id: str) -> CallbackSubscriber | None:
        return self._ids.get(id)

    def find(self, topic: str, callback: str) -> CallbackSubscriber | None:
        return self._topics.get(topic, {}).get(callback)

    def add(self, subscriber: CallbackSubscriber) -> None:
        subscription = subscriber.subscription
        self._topics.setdefault(subscription.topic, {})[subscription.callback] = subscriber
        self._ids[subscriber.id] = subscriber
        self.hosts[subscriber.host] += 1
        self.clients[subscription.client] += 1

    def remove(self, subscriber: CallbackSubscriber) -> None:
        subscription = subscriber.subscription
        if self._ids.pop(subscriber.id, None) is None:
            return
        group = self._topics[subscription.topic]
        del group[subscription.callback]
        if not group:
            del self._topics[subscription.topic]
        for counts, name in ((self.hosts, subscriber.host), (self.clients, subscription.client)):
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

    async def put(self, subscription: Subscription) -> CallbackSubscriber | None:
        """Add or renew a subscription. Return None if it has moved to another node."""
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
        new = CallbackSubscriber(subscription)
        self._registry.add(new)
        return new

    async def change(self, subscriber: CallbackSubscriber, **fields: Any) -> bool:
        """Change fields of a subscription. Return False if it has ended."""
        async with subscriber.lock:
            if not self._has(subscriber):
                return False
            await self._store.save(replace(subscriber.subscription, **fields))
            # The cursor may have moved during the save.
            subscriber.subscription = replace(subscriber.subscription, **fields)
            return True

    async def end(self, subscriber: CallbackSubscriber, *, lease: Instant | None = None) -> bool:
        """End a subscription. Return False if `lease` is given and was renewed."""
        async with subscriber.lock:
            if not self._has(subscriber):
                return True
            subscription = subscriber.subscription
            if lease not in (None, subscription.expires):
                return False
            await self._store.delete(subscription.topic, subscription.callback)
            self._registry.remove(subscriber)
            return True

    def check_owner(self, callback: str) -> None:
        """Raise `NotOwner` if another node may own the subscriptions of a callback."""
        if not self._store.owns(authority_of(callback)):
            raise NotOwner("another node owns the subscriptions of this callback")

    def may_deliver(self, subscriber: CallbackSubscriber) -> bool:
        """Return whether this node owns the subscription at this moment."""
        return not subscriber.is_stopped and self._store.owns(subscriber.authority)

    def _has(self, subscriber: CallbackSubscriber) -> bool:
        return self._registry.get(subscriber.id) is subscriber

    def save_failure_state(self, subscriber: CallbackSubscriber) -> None:
        """Store the failure state if it has changed."""
        state = subscriber.failure_state
        if state != subscriber.stored_failure_state:
            subscriber.stored_failure_state = state
            encoded = None if state is None else msgspec.msgpack.encode(state)
            subscription = subscriber.subscription
            self._store.save_failure_state(subscription.topic, subscription.callback, encoded)

    def move_cursor(self, subscriber: CallbackSubscriber, position: int) -> None:
        # A renewal may have replaced the subscription, but only the sender changes the position.
        subscriber.subscription = replace(subscriber.subscription, position=position)
        subscription = subscriber.subscription
        self._store.move_cursor(subscription.topic, subscription.callback, position)
