"""Converts the hub's values to the schemas of the admin API, without I/O or a clock.

`HubReadings` is the state of a hub at one instant. Status, history and metrics are computed from
it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from math import ceil
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.coverage import EARLIEST
from rsnotify.format.datetimes import Instant
from rsnotify.runtime.transport_extensions import offered_schemes
from rsnotify_hub.admin import schemas
from rsnotify_hub.admin.schemas import DiskInfo
from rsnotify_hub.live.connections import ConnectionCounts
from rsnotify_hub.statistics import BrokerInfo, DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.store.interface import Backlog, LogState
from rsnotify_hub.store.nodes import NodeList
from rsnotify_hub.urls import redacted_callback
from rsnotify_hub.websub.callback_subscriber import CallbackSubscriber, DeliveryAttempt
from rsnotify_hub.websub_subscription import DeliveryState

#: A Source sends heartbeats, so if it is silent for this long, it is down or cannot reach the hub.
SILENT = timedelta(minutes=15)
#: If a Source's pace is known, the limit is this many times its pace, but at least this minimum.
PACES, SHORTEST_SILENCE = 3, timedelta(seconds=30)


class HubReadings(Struct, frozen=True, kw_only=True):
    """The state of a hub. `StatusInfo` describes most fields.

    Args:
        lags: Returns how long each WebSub subscription that is not suspended has been behind, in
            seconds; 0 if it is up to date.
        silence: Returns the duration after which a host's Source counts as silent.
        nodes: The nodes. Only a cluster has metrics of its nodes.
        moved_shards: The numbers of shards that this node has taken, released and lost.
    """

    version: str
    statistics: Statistics
    logs: Sequence[LogState]
    subscriptions: Mapping[DeliveryState, int]
    lags: Callable[[], Sequence[float]]
    connections: int
    live: ConnectionCounts = ConnectionCounts()
    delivery_queue: int
    commit_queue: int
    started: Instant = EARLIEST
    now: Instant = EARLIEST
    silence: Callable[[str], timedelta] = lambda source: SILENT
    brokers: Mapping[str, BrokerInfo] = {}
    nodes: NodeList | None = None
    moved_shards: Mapping[str, int] = {}
    disk: DiskInfo | None = None


K = TypeVar("K")
S = TypeVar("S", bound=Struct)

TROUBLED = (DeliveryState.RETRYING, DeliveryState.GIVEN_UP)


#: The fields of a status that are sums over all nodes.
_OF_NODES = (
    "subscriptions",
    "websockets",
    "event_streams",
    "subscribers",
    "websocket_subscribers",
    "publishers",
    "slow",
    "connections",
    "live_queue",
    "delivery_queue",
    "commit_queue",
)


def _filled(schema: type[S], *sources: object, **values: Any) -> S:
    """Build a struct from the given values. Other fields come from attributes of the sources."""
    for name in schema.__struct_fields__:
        for source in sources:
            if name not in values and hasattr(source, name):
                values[name] = getattr(source, name)
    return schema(**values)


def topic_id(topic: str) -> str:
    return hashlib.sha256(topic.encode()).hexdigest()[:32]


def source_of(topic: str) -> str:
    """Return the host and port of a topic, which identify its Source.

    Silence is measured per Source because a Source need not send heartbeats on all its topics.
    """
    return topic.partition("://")[2].partition("/")[0]


def last_received(logs: Iterable[LogState], now: Instant) -> dict[str, Instant]:
    """Return the arrival time of each Source's last fragment.

    If the clock was set back, this is the arrival time that is closest to now.
    """
    found: dict[str, Instant] = {}
    for log in logs:
        if not log.whole:  # any WebSub publisher may send whole contents, without heartbeats
            source = source_of(log.topic)
            times = (found.get(source, EARLIEST), log.received)
            found[source] = min(times, key=lambda time: abs(now - time))
    return found


def silent_sources(
    logs: Iterable[LogState], now: Instant, silence: Callable[[str], timedelta]
) -> dict[str, Instant]:
    """Return the silent Sources, with the arrival time of their last fragment."""
    return {
        source: received
        for source, received in last_received(logs, now).items()
        if abs(now - received) > silence(source)
    }


def topic(
    state: LogState, *, rate: float, subscribers: schemas.SubscriberCounts, silent: bool
) -> schemas.TopicInfo:
    return _filled(
        schemas.TopicInfo,
        state,
        subscribers,
        id=topic_id(state.topic),
        bytes=state.size,
        rate=rate,
        silent=silent,
    )


def total_subscribers(every: Sequence[schemas.SubscriberCounts]) -> schemas.SubscriberCounts:
    names = schemas.SubscriberCounts.__struct_fields__
    return schemas.SubscriberCounts(**_sums(names, every))


def subscribers(readings: HubReadings) -> int:
    subscriptions = sum(readings.subscriptions.values())
    return subscriptions + readings.live.websocket_subscribers + readings.live.event_streams


def status(readings: HubReadings) -> schemas.StatusInfo:
    """Return the status of this node, without `parts` and `troubled`."""
    counts, logs = readings.subscriptions, readings.logs
    lag_p50, lag_p99 = lag_percentiles(readings.lags())
    return _filled(
        schemas.StatusInfo,
        readings,
        readings.live,
        readings.statistics,
        nodes=1,
        topics=len(logs),
        subscriptions=sum(counts.values()),
        subscribers=subscribers(readings),
        lag_seconds=max(readings.lags(), default=0.0),
        troubled=0,
        parts=[],
        states={state: counts.get(state, 0) for state in DeliveryState},
        deliveries=deliveries(readings.statistics),
        log_bytes=sum(log.size for log in logs),
        lag_p50=lag_p50,
        lag_p99=lag_p99,
        silent=len(silent_sources(logs, readings.now, readings.silence)),
        brokers={str(way): broker for way, broker in readings.brokers.items()},
    )


def lag_seconds(delivery: CallbackSubscriber, now: Instant) -> float:
    """Return how long a subscription has been behind, in seconds; 0 if it is up to date."""
    if delivery.behind_since is None:
        return 0.0
    return max(0.0, (now - delivery.behind_since).total_seconds())


def lag_percentiles(lags: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the median and the 99th percentile of some lags; None if there are no lags."""
    if not lags:
        return None, None
    ordered = sorted(lags)
    half, nearly_all = (ordered[ceil(part * len(ordered)) - 1] for part in (0.5, 0.99))
    return half, nearly_all


def troubled(states: Mapping[DeliveryState, int]) -> int:
    return sum(states.get(state, 0) for state in TROUBLED)


def subscription(
    delivery: CallbackSubscriber, backlog: Backlog, now: Instant
) -> schemas.SubscriptionInfo:
    return _filled(
        schemas.SubscriptionInfo,
        delivery,
        delivery.subscription,
        lag_seconds=lag_seconds(delivery, now),
        behind=backlog.fragments,
        last_failure=_last_failure(delivery),
        callback=redacted_callback(delivery.subscription.callback),
    )


def attempts(delivery: CallbackSubscriber) -> tuple[schemas.AttemptInfo, ...]:
    every = [_attempt(each, delivered=False) for each in delivery.failed]
    every += [_attempt(each, delivered=True) for each in delivery.delivered]
    return tuple(sorted(every, key=lambda each: each.at, reverse=True))


def _attempt(attempt: DeliveryAttempt, *, delivered: bool) -> schemas.AttemptInfo:
    took = timedelta(seconds=attempt.seconds if delivered else 0.0)
    return _filled(
        schemas.AttemptInfo,
        attempt,
        at=attempt.at + took,
        excerpt=_excerpt(attempt),
        delivered=delivered,
    )


def dead_letter(
    delivery: CallbackSubscriber, backlog: Backlog, through: Instant | None
) -> schemas.DeadLetterInfo:
    return _filled(
        schemas.DeadLetterInfo,
        delivery,
        delivery.subscription,
        backlog,
        from_=backlog.begins,
        until=through,
        last_failure=_last_failure(delivery),
    )


def status_of_all(
    own: schemas.StatusInfo, others: Sequence[schemas.StatusInfo]
) -> schemas.StatusInfo:
    """Combine the statuses of all nodes, which have the same logs, into the status of the hub."""
    every = [own, *others]
    return replace(
        own,
        nodes=len(every),
        lag_seconds=max(each.lag_seconds for each in every),
        slow_seconds=max(each.slow_seconds for each in every),
        store_failure=next(filter(None, (each.store_failure for each in every)), None),
        brokers={way: _broker_of_all(way, every) for way in own.brokers},
        states=_totals(each.states for each in every),
        deliveries={
            way: _totals(each.deliveries[way] for each in every if way in each.deliveries)
            for way in own.deliveries
        },
        lag_p50=max((each.lag_p50 for each in every if each.lag_p50 is not None), default=None),
        lag_p99=max((each.lag_p99 for each in every if each.lag_p99 is not None), default=None),
        **_sums(_OF_NODES, every),
    )


def _broker_of_all(way: str, every: Sequence[schemas.StatusInfo]) -> BrokerInfo:
    # Only the node that owns the broker's cursors is connected, or knows why it is not.
    found = [each.brokers[way] for each in every if way in each.brokers]
    return max(found, key=lambda each: (each.connected, not is_elsewhere(each)))


def is_elsewhere(broker: BrokerInfo) -> bool:
    """Return whether another node publishes to a broker."""
    return not broker.connected and broker.since is None


def _sums(names: Iterable[str], every: Sequence[Struct]) -> dict[str, int]:
    return {name: sum(getattr(each, name) for each in every) for name in names}


def _totals(counts: Iterable[Mapping[K, int]]) -> dict[K, int]:
    total: Counter[K] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _last_failure(delivery: CallbackSubscriber) -> schemas.FailureInfo | None:
    failed = delivery.last_failure
    if failed is None:
        return None
    return _filled(schemas.FailureInfo, failed, excerpt=_excerpt(failed))


def _excerpt(attempt: DeliveryAttempt) -> str:
    return attempt.excerpt.decode(errors="replace")


def failure(delivery: CallbackSubscriber, failed: DeliveryAttempt) -> schemas.SubscriptionFailure:
    return _filled(
        schemas.SubscriptionFailure,
        failed,
        delivery,
        delivery.subscription,
        callback=redacted_callback(delivery.subscription.callback),
        excerpt=_excerpt(failed),
    )


def deliveries(statistics: Statistics) -> dict[str, dict[str, int]]:
    return {
        way: {outcome.value: statistics.deliveries[way, outcome] for outcome in DeliveryOutcome}
        for way in transport_names()
    }


def transport_names() -> list[str]:
    """Return the names of all transports, including transports from installed packages."""
    own = [each.value for each in DeliveryTransport]
    return [*own[:-1], *offered_schemes(), own[-1]]
