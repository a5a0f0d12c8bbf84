"""Converts the hub's values to the schemas of the admin API, without I/O or a clock."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import asdict, replace

from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin import schemas
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.store.interface import Backlog, LogState
from rsnotify_hub.websub.delivery.delivery import Delivery, DeliveryFailure

K = TypeVar("K")


def topic_id(topic: str) -> str:
    return hashlib.sha256(topic.encode()).hexdigest()[:32]


def topic(
    state: LogState, *, rate: float, subscribers: schemas.SubscriberCounts
) -> schemas.TopicInfo:
    return schemas.TopicInfo(
        id=topic_id(state.topic),
        topic=state.topic,
        through=state.through,
        received=state.received,
        begins=state.begins,
        kept=state.kept,
        bytes=state.size,
        rate=rate,
        websockets=subscribers.websockets,
        event_streams=subscribers.event_streams,
        subscriptions=subscribers.subscriptions,
    )


def total_subscribers(every: Sequence[schemas.SubscriberCounts]) -> schemas.SubscriberCounts:
    return schemas.SubscriberCounts(
        websockets=sum(each.websockets for each in every),
        event_streams=sum(each.event_streams for each in every),
        subscriptions=sum(each.subscriptions for each in every),
    )


def lag_seconds(delivery: Delivery, now: Instant) -> float:
    """Return how long a subscription has been behind; 0 if it is up to date."""
    if delivery.behind_since is None:
        return 0.0
    return max(0.0, (now - delivery.behind_since).total_seconds())


def subscription(delivery: Delivery, backlog: Backlog, now: Instant) -> schemas.SubscriptionInfo:
    return schemas.SubscriptionInfo(
        id=delivery.id,
        topic=delivery.subscription.topic,
        host=delivery.host,
        state=delivery.state,
        expires=delivery.subscription.expires,
        lag_seconds=lag_seconds(delivery, now),
        behind=backlog.fragments,
        failures=delivery.failures,
        retry_at=delivery.retry_at,
        last_failure=_last_failure(delivery),
    )


def dead_letter(
    delivery: Delivery, backlog: Backlog, through: Instant | None
) -> schemas.DeadLetterInfo:
    return schemas.DeadLetterInfo(
        id=delivery.id,
        topic=delivery.subscription.topic,
        host=delivery.host,
        given_up_since=delivery.given_up_since,
        from_=backlog.begins,
        until=through,
        fragments=backlog.fragments,
        last_failure=_last_failure(delivery),
    )


def status_of_all(
    own: schemas.StatusInfo, others: Sequence[schemas.StatusInfo]
) -> schemas.StatusInfo:
    """Return the status of a hub from those of its nodes, which all have the same logs."""
    every = [own, *others]
    return replace(
        own,
        nodes=len(every),
        subscriptions=sum(each.subscriptions for each in every),
        websockets=sum(each.websockets for each in every),
        event_streams=sum(each.event_streams for each in every),
        states=_sums(each.states for each in every),
        deliveries={
            way: _sums(each.deliveries[way] for each in every if way in each.deliveries)
            for way in own.deliveries
        },
    )


def _sums(counts: Iterable[Mapping[K, int]]) -> dict[K, int]:
    total: Counter[K] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _last_failure(delivery: Delivery) -> schemas.FailureInfo | None:
    return None if delivery.last_failure is None else _failure_info(delivery.last_failure)


def _failure_info(failed: DeliveryFailure) -> schemas.FailureInfo:
    excerpt = failed.excerpt.decode(errors="replace")
    return schemas.FailureInfo(
        at=failed.at, status=failed.status, reason=failed.reason, excerpt=excerpt
    )


def failure(id: str, topic: str, host: str, failed: DeliveryFailure) -> schemas.SubscriptionFailure:
    return schemas.SubscriptionFailure(
        id=id, topic=topic, host=host, **asdict(_failure_info(failed))
    )


def deliveries(statistics: Statistics) -> dict[str, dict[str, int]]:
    return {
        way.value: {
            outcome.value: statistics.deliveries[way, outcome] for outcome in DeliveryOutcome
        }
        for way in DeliveryTransport
    }
