"""Converts the hub's values to the schemas of the admin API, and merges those of all nodes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant
from rsnotify.runtime.transport_extensions import offered_schemes
from rsnotify_hub.admin import schemas
from rsnotify_hub.admin.hub_readings import HubReadings, lag_seconds
from rsnotify_hub.statistics import BrokerInfo, DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.store.interface import Backlog, LogState
from rsnotify_hub.urls import redacted_callback
from rsnotify_hub.websub.callback_subscriber import CallbackSubscriber, DeliveryAttempt
from rsnotify_hub.websub_subscription import DeliveryState

K = TypeVar("K")
S = TypeVar("S", bound=Struct)

#: The fields of the status that are summed over all nodes.
_SUMMED_FIELDS = (
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


def _convert(schema: type[S], *sources: object, **values: Any) -> S:
    """Create a struct from values, and from attributes of the sources with the fields' names."""
    for name in schema.__struct_fields__:
        for source in sources:
            if name not in values and hasattr(source, name):
                values[name] = getattr(source, name)
    return schema(**values)


def topic_id(topic: str) -> str:
    return hashlib.sha256(topic.encode()).hexdigest()[:32]


def topic_info(
    state: LogState, *, rate: float, subscribers: schemas.SubscriberCounts, silent: bool
) -> schemas.TopicInfo:
    return _convert(
        schemas.TopicInfo,
        state,
        subscribers,
        id=topic_id(state.topic),
        bytes=state.size,
        rate=rate,
        silent=silent,
    )


def sum_subscribers(every: Sequence[schemas.SubscriberCounts]) -> schemas.SubscriberCounts:
    names = schemas.SubscriberCounts.__struct_fields__
    return schemas.SubscriberCounts(**_sums(names, every))


def status_info(readings: HubReadings) -> schemas.StatusInfo:
    """Return the status of this node, with empty `parts` and `troubled`."""
    counts, logs = readings.subscriptions, readings.logs
    lag_p50, lag_p99 = readings.lag_percentiles()
    return _convert(
        schemas.StatusInfo,
        readings,
        readings.live,
        readings.statistics,
        nodes=1,
        topics=len(logs),
        subscriptions=sum(counts.values()),
        subscribers=readings.count_subscribers(),
        lag_seconds=max(readings.lags(), default=0.0),
        troubled=0,
        parts=[],
        states={state: counts.get(state, 0) for state in DeliveryState},
        deliveries=delivery_counts(readings.statistics),
        log_bytes=sum(log.size for log in logs),
        lag_p50=lag_p50,
        lag_p99=lag_p99,
        silent=len(readings.silent_sources()),
        brokers={str(way): broker for way, broker in readings.brokers.items()},
    )


def subscription_info(
    delivery: CallbackSubscriber, backlog: Backlog, now: Instant
) -> schemas.SubscriptionInfo:
    return _convert(
        schemas.SubscriptionInfo,
        delivery,
        delivery.subscription,
        lag_seconds=lag_seconds(delivery, now),
        behind=backlog.fragments,
        last_failure=_last_failure(delivery),
        callback=redacted_callback(delivery.subscription.callback),
    )


def attempt_infos(delivery: CallbackSubscriber) -> tuple[schemas.AttemptInfo, ...]:
    every = [_attempt_info(each, delivered=False) for each in delivery.failed]
    every += [_attempt_info(each, delivered=True) for each in delivery.delivered]
    return tuple(sorted(every, key=lambda each: each.at, reverse=True))


def _attempt_info(attempt: DeliveryAttempt, *, delivered: bool) -> schemas.AttemptInfo:
    duration = timedelta(seconds=attempt.seconds if delivered else 0.0)
    return _convert(
        schemas.AttemptInfo,
        attempt,
        at=attempt.at + duration,
        excerpt=_excerpt(attempt),
        delivered=delivered,
    )


def dead_letter_info(
    delivery: CallbackSubscriber, backlog: Backlog, through: Instant | None
) -> schemas.DeadLetterInfo:
    return _convert(
        schemas.DeadLetterInfo,
        delivery,
        delivery.subscription,
        backlog,
        from_=backlog.begins,
        until=through,
        last_failure=_last_failure(delivery),
    )


def merge_statuses(
    own: schemas.StatusInfo, others: Sequence[schemas.StatusInfo]
) -> schemas.StatusInfo:
    """Merge the statuses of all nodes, which have the same logs, into the status of the hub."""
    every = [own, *others]
    return replace(
        own,
        nodes=len(every),
        lag_seconds=max(each.lag_seconds for each in every),
        slow_seconds=max(each.slow_seconds for each in every),
        store_failure=next(filter(None, (each.store_failure for each in every)), None),
        brokers={way: _merge_brokers(way, every) for way in own.brokers},
        states=_totals(each.states for each in every),
        deliveries={
            way: _totals(each.deliveries[way] for each in every if way in each.deliveries)
            for way in own.deliveries
        },
        lag_p50=max((each.lag_p50 for each in every if each.lag_p50 is not None), default=None),
        lag_p99=max((each.lag_p99 for each in every if each.lag_p99 is not None), default=None),
        **_sums(_SUMMED_FIELDS, every),
    )


def _merge_brokers(way: str, every: Sequence[schemas.StatusInfo]) -> BrokerInfo:
    # Only the node that runs the bridge is connected, or knows why it is not.
    found = [each.brokers[way] for each in every if way in each.brokers]
    return max(found, key=lambda each: (each.connected, not is_run_elsewhere(each)))


def is_run_elsewhere(broker: BrokerInfo) -> bool:
    """Return whether another node runs the bridge to a broker."""
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
    return _convert(schemas.FailureInfo, failed, excerpt=_excerpt(failed))


def _excerpt(attempt: DeliveryAttempt) -> str:
    return attempt.excerpt.decode(errors="replace")


def subscription_failure(
    delivery: CallbackSubscriber, failed: DeliveryAttempt
) -> schemas.SubscriptionFailure:
    return _convert(
        schemas.SubscriptionFailure,
        failed,
        delivery,
        delivery.subscription,
        callback=redacted_callback(delivery.subscription.callback),
        excerpt=_excerpt(failed),
    )


def delivery_counts(statistics: Statistics) -> dict[str, dict[str, int]]:
    return {
        way: {outcome.value: statistics.deliveries[way, outcome] for outcome in DeliveryOutcome}
        for way in transport_names()
    }


def transport_names() -> list[str]:
    """Return the names of all transports, including transports from installed packages."""
    own = [each.value for each in DeliveryTransport]
    return [*own[:-1], *offered_schemes(), own[-1]]
