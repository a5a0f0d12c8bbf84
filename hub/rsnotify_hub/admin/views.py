"""Converts the hub's values to the schemas of the admin API, without I/O or a clock.

The state of a hub at one instant, from which status, history and metrics are made.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin import schemas
from rsnotify_hub.admin import schemas as attempt_schemas
from rsnotify_hub.admin import schemas as status_schemas
from rsnotify_hub.admin.schemas import DiskInfo
from rsnotify_hub.statistics import BrokerState, DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.store.interface import Backlog, LogState
from rsnotify_hub.store.nodes import NodeList
from rsnotify_hub.subscriptions import DeliveryState
from rsnotify_hub.urls import redacted_callback
from rsnotify_hub.websub.delivery import Delivery, DeliveryAttempt


class HubReadings(Struct, frozen=True, kw_only=True):
    """The state of a hub.

    Args:
        lags: Returns how long each WebSub subscription that is not suspended has been behind, in
            seconds; 0 if it is up to date.
        connections: The number of open connections to the server, of any kind.
        live_queue: The bytes that wait in all WebSockets and event streams.
        delivery_queue: The number of WebSub deliveries that wait for a connection.
        commit_queue: The number of writes that wait for the next transaction.
        nodes: The nodes; only those of a cluster have metrics.
        brokers: The state of each broker that the hub has a bridge to.
        moved_shards: How many shards this node has taken, released and lost.
        disk: The disk with the data folder, if there is one.
    """

    version: str
    statistics: Statistics
    logs: Sequence[LogState]
    subscriptions: Mapping[DeliveryState, int]
    lags: Callable[[], Sequence[float]]
    connections: int
    websockets: int
    event_streams: int
    live_queue: int
    delivery_queue: int
    commit_queue: int
    brokers: Mapping[DeliveryTransport, BrokerState] = {}
    nodes: NodeList | None = None
    moved_shards: Mapping[str, int] = {}
    disk: DiskInfo | None = None


K = TypeVar("K")

TROUBLED = (DeliveryState.RETRYING, DeliveryState.GIVEN_UP)

#: After so much silence a Source, which sends heartbeats, is down or does not reach the hub.
SILENT = timedelta(minutes=15)


def topic_id(topic: str) -> str:
    return hashlib.sha256(topic.encode()).hexdigest()[:32]


def source_of(topic: str) -> str:
    """Return the host and port of a topic. A Source need not send heartbeats on all its topics."""
    return topic.partition("://")[2].partition("/")[0]


def silent_sources(logs: Iterable[LogState], now: Instant) -> set[str]:
    silent: set[str] = set()
    others: set[str] = set()
    since = now - SILENT
    for log in logs:
        if not log.whole:  # whole contents come from any publisher of WebSub, without heartbeats
            (silent if log.received < since else others).add(source_of(log.topic))
    return silent - others


def topic(
    state: LogState, *, rate: float, subscribers: schemas.SubscriberCounts, silent: bool
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
        silent=silent,
    )


def total_subscribers(every: Sequence[schemas.SubscriberCounts]) -> schemas.SubscriberCounts:
    return schemas.SubscriberCounts(
        websockets=sum(each.websockets for each in every),
        event_streams=sum(each.event_streams for each in every),
        subscriptions=sum(each.subscriptions for each in every),
    )


def status(readings: HubReadings, *, started: Instant, now: Instant) -> status_schemas.StatusInfo:
    counts, done = readings.subscriptions, readings.statistics
    return status_schemas.StatusInfo(
        version=readings.version,
        started=started,
        now=now,
        topics=len(readings.logs),
        subscriptions=sum(counts.values()),
        states={state: counts.get(state, 0) for state in DeliveryState},
        websockets=readings.websockets,
        event_streams=readings.event_streams,
        accepted=done.accepted,
        accepted_bytes=done.accepted_bytes,
        deliveries=deliveries(done),
        log_bytes=sum(log.size for log in readings.logs),
        silent=len(silent_sources(readings.logs, now)),
        connections=readings.connections,
        live_queue=readings.live_queue,
        delivery_queue=readings.delivery_queue,
        commit_queue=readings.commit_queue,
        brokers={
            way.value: status_schemas.BrokerInfo(**asdict(broker))
            for way, broker in readings.brokers.items()
        },
        disk=readings.disk,
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
        callback=redacted_callback(delivery.subscription.callback),
    )


def attempts(delivery: Delivery) -> tuple[attempt_schemas.AttemptInfo, ...]:
    every = [_attempt(each, delivered=False) for each in delivery.failed]
    every += [_attempt(each, delivered=True) for each in delivery.delivered]
    return tuple(sorted(every, key=lambda each: each.at, reverse=True))


def _attempt(attempt: DeliveryAttempt, *, delivered: bool) -> attempt_schemas.AttemptInfo:
    info = _failure_info(attempt)
    took = timedelta(seconds=attempt.seconds if delivered else 0.0)
    return attempt_schemas.AttemptInfo(
        at=info.at + took,
        status=info.status,
        reason=info.reason,
        excerpt=info.excerpt,
        seconds=attempt.seconds,
        delivered=delivered,
        after=attempt.after,
        through=attempt.through,
        size=attempt.size,
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
    own: status_schemas.StatusInfo, others: Sequence[status_schemas.StatusInfo]
) -> status_schemas.StatusInfo:
    """Return the status of a hub from those of its nodes, which all have the same logs."""
    every = [own, *others]
    return replace(
        own,
        nodes=len(every),
        subscriptions=sum(each.subscriptions for each in every),
        websockets=sum(each.websockets for each in every),
        event_streams=sum(each.event_streams for each in every),
        connections=sum(each.connections for each in every),
        live_queue=sum(each.live_queue for each in every),
        delivery_queue=sum(each.delivery_queue for each in every),
        commit_queue=sum(each.commit_queue for each in every),
        brokers={way: _broker_of_all(way, every) for way in own.brokers},
        states=_sums(each.states for each in every),
        deliveries={
            way: _sums(each.deliveries[way] for each in every if way in each.deliveries)
            for way in own.deliveries
        },
    )


def _broker_of_all(
    way: str, every: Sequence[status_schemas.StatusInfo]
) -> status_schemas.BrokerInfo:
    # Only the node with its cursors is connected, or knows why it is not.
    found = [each.brokers[way] for each in every if way in each.brokers]
    return max(found, key=lambda each: (each.connected, each.since is not None))


def _sums(counts: Iterable[Mapping[K, int]]) -> dict[K, int]:
    total: Counter[K] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _last_failure(delivery: Delivery) -> schemas.FailureInfo | None:
    return None if delivery.last_failure is None else _failure_info(delivery.last_failure)


def _failure_info(failed: DeliveryAttempt) -> schemas.FailureInfo:
    excerpt = failed.excerpt.decode(errors="replace")
    return schemas.FailureInfo(
        at=failed.at, status=failed.status, reason=failed.reason, excerpt=excerpt
    )


def failure(delivery: Delivery, failed: DeliveryAttempt) -> schemas.SubscriptionFailure:
    return schemas.SubscriptionFailure(
        id=delivery.id,
        topic=delivery.subscription.topic,
        host=delivery.host,
        callback=redacted_callback(delivery.subscription.callback),
        **asdict(_failure_info(failed)),
    )


def deliveries(statistics: Statistics) -> dict[str, dict[str, int]]:
    return {
        way.value: {
            outcome.value: statistics.deliveries[way, outcome] for outcome in DeliveryOutcome
        }
        for way in DeliveryTransport
    }
