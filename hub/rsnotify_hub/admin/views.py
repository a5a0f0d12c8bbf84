"""The hub's values as the admin API tells them. Nothing here does I/O or reads a clock."""

from __future__ import annotations

import hashlib

from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin import shapes
from rsnotify_hub.log.store import LogState, Waiting
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.websub.delivery.delivery import Delivery, DeliveryFailure


def topic_id(topic: str) -> str:
    """Return what a topic is called in paths: 32 hexadecimal digits."""
    return hashlib.sha256(topic.encode()).hexdigest()[:32]


def topic(state: LogState, *, rate: float, websockets: int, subscriptions: int) -> shapes.Topic:
    """Tell of a topic.

    Args:
        state: Its log.
        rate: Fragments a second.
        websockets: How many WebSockets listen.
        subscriptions: How many WebSub subscriptions it has.
    """
    return shapes.Topic(
        id=topic_id(state.topic),
        topic=state.topic,
        through=state.through,
        received=state.received,
        begins=state.begins,
        kept=state.kept,
        bytes=state.size,
        rate=rate,
        websockets=websockets,
        subscriptions=subscriptions,
    )


def lag_seconds(delivery: Delivery, now: Instant) -> float:
    """Return how long a subscription has been behind; 0 when it is up to date."""
    if delivery.behind_since is None:
        return 0.0
    return max(0.0, (now - delivery.behind_since).total_seconds())


def subscription(delivery: Delivery, waiting: Waiting, now: Instant) -> shapes.Subscription:
    """Tell of a subscription.

    Args:
        delivery: How it stands.
        waiting: What of the log it has not got.
        now: The current instant.
    """
    return shapes.Subscription(
        id=delivery.id,
        topic=delivery.subscription.topic,
        host=delivery.host,
        state=delivery.state,
        expires=delivery.subscription.expires,
        lag_seconds=lag_seconds(delivery, now),
        behind=waiting.fragments,
        failures=delivery.failures,
        retry_at=delivery.retry_at,
        last_failure=_last_failure(delivery),
    )


def dead_letter(delivery: Delivery, waiting: Waiting, through: Instant | None) -> shapes.DeadLetter:
    """Tell of a subscription that was given up.

    Args:
        delivery: How it stands.
        waiting: What of the log it has not got.
        through: The instant that the log reaches.
    """
    return shapes.DeadLetter(
        id=delivery.id,
        topic=delivery.subscription.topic,
        host=delivery.host,
        given_up_since=delivery.given_up_since,
        from_=waiting.begins,
        until=through,
        fragments=waiting.fragments,
        last_failure=_last_failure(delivery),
    )


def _last_failure(delivery: Delivery) -> shapes.Failure | None:
    failure = delivery.last_failure
    if failure is None:
        return None
    return shapes.Failure(
        at=failure.at, status=failure.status, reason=failure.reason, excerpt=_text(failure.excerpt)
    )


def failure(id: str, topic: str, host: str, what: DeliveryFailure) -> shapes.SubscriptionFailure:
    """Tell of a failure among others.

    Args:
        id: The subscription.
        topic: Its topic.
        host: The host of its callback.
        what: The failure.
    """
    return shapes.SubscriptionFailure(
        id=id,
        topic=topic,
        host=host,
        at=what.at,
        status=what.status,
        reason=what.reason,
        excerpt=_text(what.excerpt),
    )


def _text(excerpt: bytes) -> str:
    return excerpt.decode(errors="replace")


def deliveries(statistics: Statistics) -> dict[str, dict[str, int]]:
    """Return the counts of deliveries, by way and outcome."""
    return {
        way.value: {
            outcome.value: statistics.deliveries[way, outcome] for outcome in DeliveryOutcome
        }
        for way in DeliveryTransport
    }
