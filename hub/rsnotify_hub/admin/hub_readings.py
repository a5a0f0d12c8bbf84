"""The state of the hub at one instant, from which status, history and metrics are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from math import ceil

from msgspec import Struct

from rsnotify.format.coverage import EARLIEST
from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin.schemas import DiskInfo
from rsnotify_hub.live.connections import ConnectionCounts
from rsnotify_hub.statistics import BrokerInfo, Statistics
from rsnotify_hub.store.interface import LogState
from rsnotify_hub.store.nodes import NodeList
from rsnotify_hub.websub.callback_subscriber import CallbackSubscriber
from rsnotify_hub.websub_subscription import DeliveryState

#: A Source sends heartbeats, so one that sends nothing for this long is down, or cannot reach the
#: hub.
MAX_SILENCE = timedelta(minutes=15)

TROUBLED_STATES = (DeliveryState.RETRYING, DeliveryState.GIVEN_UP)


class HubReadings(Struct, frozen=True, kw_only=True):
    """The state of a hub. `StatusInfo` describes most fields.

    Args:
        lags: Returns the lag of each WebSub subscription that is not suspended, in seconds; 0 if it
            is up to date.
        silence_limit: Returns the time without a fragment after which a Source counts as silent.
        nodes: The nodes of the hub.
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
    silence_limit: Callable[[str], timedelta] = lambda source: MAX_SILENCE
    brokers: Mapping[str, BrokerInfo] = {}
    nodes: NodeList | None = None
    moved_shards: Mapping[str, int] = {}
    disk: DiskInfo | None = None

    def count_subscribers(self) -> int:
        subscriptions = sum(self.subscriptions.values())
        return subscriptions + self.live.websocket_subscribers + self.live.event_streams

    def silent_sources(self) -> dict[str, Instant]:
        return silent_sources(self.logs, self.now, self.silence_limit)

    def lag_percentiles(self) -> tuple[float | None, float | None]:
        """Return the median and the 99th percentile of the lags; None if there are no lags."""
        if not (lags := sorted(self.lags())):
            return None, None
        half, nearly_all = (lags[ceil(fraction * len(lags)) - 1] for fraction in (0.5, 0.99))
        return half, nearly_all


def source_of(topic: str) -> str:
    """Return the host and port of a topic, which identify its Source.

    Silence is measured per Source, because a Source need not send heartbeats on every topic.
    """
    return topic.partition("://")[2].partition("/")[0]


def last_received(logs: Iterable[LogState], now: Instant) -> dict[str, Instant]:
    """Return the arrival time of each Source's last fragment.

    If the clock was set back, this is the arrival time closest to now.
    """
    found: dict[str, Instant] = {}
    for log in logs:
        if not log.whole:  # any WebSub publisher may send whole contents, without heartbeats
            source = source_of(log.topic)
            times = (found.get(source, EARLIEST), log.received)
            found[source] = min(times, key=lambda time: abs(now - time))
    return found


def silent_sources(
    logs: Iterable[LogState], now: Instant, silence_limit: Callable[[str], timedelta]
) -> dict[str, Instant]:
    """Return the silent Sources, with the arrival times of their last fragments."""
    return {
        source: received
        for source, received in last_received(logs, now).items()
        if abs(now - received) > silence_limit(source)
    }


def lag_seconds(delivery: CallbackSubscriber, now: Instant) -> float:
    """Return the lag of a subscription in seconds; 0 if it is up to date."""
    if delivery.behind_since is None:
        return 0.0
    return max(0.0, (now - delivery.behind_since).total_seconds())


def count_troubled(states: Mapping[DeliveryState, int]) -> int:
    return sum(states.get(state, 0) for state in TROUBLED_STATES)
