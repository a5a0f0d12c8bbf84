"""All subscriptions that are there now, and how many of them belong to whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from rsnotify_hub.websub.delivery.delivery import Delivery


class SubscriptionRegistry:
    """Finds subscriptions by topic and callback, and by id."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, Delivery]] = {}
        self._ids: dict[str, Delivery] = {}
        self._hosts: Counter[str] = Counter()
        self._clients: Counter[str] = Counter()

    def __len__(self) -> int:
        """Count all."""
        return len(self._ids)

    def all(self) -> list[Delivery]:
        """Return all."""
        return list(self._ids.values())

    def of(self, topic: str) -> Collection[Delivery]:
        """Return those of one topic."""
        return self._topics.get(topic, {}).values()

    def get(self, id: str) -> Delivery | None:
        """Return the one of this id, if there is one."""
        return self._ids.get(id)

    def find(self, topic: str, callback: str) -> Delivery | None:
        """Return the one of this topic and callback, if there is one."""
        return self._topics.get(topic, {}).get(callback)

    def add(self, delivery: Delivery) -> None:
        """Take in one that is not there."""
        subscription = delivery.subscription
        self._topics.setdefault(subscription.topic, {})[subscription.callback] = delivery
        self._ids[delivery.id] = delivery
        self._hosts[delivery.host] += 1
        self._clients[subscription.client] += 1

    def remove(self, delivery: Delivery) -> None:
        """Let go of one, if it is there."""
        subscription = delivery.subscription
        if self._ids.pop(delivery.id, None) is None:
            return
        group = self._topics[subscription.topic]
        del group[subscription.callback]
        if not group:
            del self._topics[subscription.topic]
        for counts, name in (
            (self._hosts, delivery.host),
            (self._clients, subscription.client),
        ):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]

    def count_host(self, host: str) -> int:
        """Count those of one callback host."""
        return self._hosts[host]

    def count_client(self, client: str) -> int:
        """Count those that one client asked for."""
        return self._clients[client]
