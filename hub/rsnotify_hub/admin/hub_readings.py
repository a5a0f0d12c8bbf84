"""The state of the hub at one instant, from which status, history and metrics are computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from math import ceil

from msgspec import Struct

from rsnotify.format.coverage import EARLIEST
from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin.schemas import DiskInfo
from rsnotify_hub.live.connections import ConnectionCounts
from rsnotify_hub.statistics import BrokerInfo, Statistics
from rsnotify_hub.store.interface import LogEntry, LogState
from rsnotify_hub.store.nodes import NodeList
from rsnotify_hub.topic_log import DeliveryChannel
from rsnotify_hub.websub.callback_subscriber import CallbackSubscriber
from rsnotify_hub.websub_subscription import DeliveryState

#: The period over which a rate is measured, in seconds.
WINDOW_SECONDS = 10

#: A Source counts as silent after this many times its longest pause before a heartbeat, but at
#: least after this time.
_SILENT_PAUSES, _MIN_SILENCE = 3, timedelta(seconds=30)

#: Maximum number of pauses to remember for each Source, and of Sources to remember.
_MAX_PAUSES, _MAX_SOURCES = 10, 10_000


class SilenceLimits:
    """Learns from each Source's heartbeats after which time the Source counts as silent.

    A Source sends a heartbeat whenever it has sent nothing for some interval, which the hub does
    not know. The longest pause before any of the last heartbeats is a good estimate.
    """

    def __init__(self) -> None:
        self._last: dict[str, Instant] = {}
        self._pauses: dict[str, deque[timedelta]] = {}

    def received(self, topic: str, entries: Sequence[LogEntry], now: Instant) -> None:
        source = source_of(topic)
        last = self._last.pop(source, None)
        if last is not None and entries[0].fragment.heartbeat:
            self._pauses.setdefault(source, deque(maxlen=_MAX_PAUSES)).append(now - last)
        self._last[source] = now  # moves the Source to the end of the order
        if len(self._last) > _MAX_SOURCES:
            oldest = next(iter(self._last))
            del self._last[oldest]
            self._pauses.pop(oldest, None)

    def limit(self, source: str) -> timedelta:
        """Return the time without a fragment after which the Source counts as silent."""
        pauses = self._pauses.get(source)
        if pauses is None:
            return MAX_SILENCE
        return min(MAX_SILENCE, max(_MIN_SILENCE, _SILENT_PAUSES * max(pauses)))


class TopicRates(DeliveryChannel):
    """Counts the fragments per second of recently changed topics, and updates `silence_limits`."""

    def __init__(self, clock: Callable[[], Instant]) -> None:
        self._clock = clock
        self._counts: dict[str, deque[list[int]]] = {}
        self.silence_limits = SilenceLimits()

    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        now = self._clock()
        self.silence_limits.received(topic, entries, now)
        second = int(now.timestamp())
        self._forget(before=second - WINDOW_SECONDS)
        counts = self._counts.pop(topic, None) or deque(maxlen=WINDOW_SECONDS + 1)
        self._counts[topic] = counts  # moves the topic to the end of the order
        if counts and counts[-1][0] == second:
            counts[-1][1] += len(entries)
        else:
            counts.append([second, len(entries)])

    def rate(self, topic: str) -> float:
        now = int(self._clock().timestamp())
        counts = self._counts.get(topic, ())
        # After the clock was set back, some of the seconds are later than now.
        recent = (count for second, count in counts if now - WINDOW_SECONDS < second <= now)
        return sum(recent) / WINDOW_SECONDS

    def __len__(self) -> int:
        return len(self._counts)

    def _forget(self, *, before: int) -> None:
        while self._counts:
            topic, counts = next(iter(self._counts.items()))
            if before < counts[-1][0] <= before + WINDOW_SECONDS:
                return
            del self._counts[topic]


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

    Silence is measured per Source, because a Source may send heartbeats on some topics only.
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
