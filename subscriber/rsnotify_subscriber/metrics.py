"""The metrics of Destinations in the Prometheus format, for `/metrics` or a custom registry.

Each scrape reads the statuses of the subscribers, and `FollowCounters` for everything that these
lack. To limit the number of series in a large fleet, few metrics have a label for the Source. All
others are totals for the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import reduce
from operator import add

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from rsnotify.errors import counted
from rsnotify.runtime.status_endpoints import Families
from rsnotify.runtime.tasks import call_in_loop
from rsnotify.sync.actions import DocumentKind
from rsnotify.sync.doubts import DoubtKind
from rsnotify_subscriber.events import BaselineBegun, GapSeen
from rsnotify_subscriber.fleet.fleet import Fleet, FollowedSourceStatus, Phase, Standing, standing
from rsnotify_subscriber.status import FollowCounters, PushState
from rsnotify_subscriber.subscriber import Subscriber

_named = Families("rsnotify_follow_")
_UNKNOWN = float("nan")
_RESPONSES = ("2xx", "3xx", "4xx", "5xx", "none")
#: Maximum number of Sources to name in a message.
_MAX_NAMED_SOURCES = 3

Statuses = Mapping[str, FollowedSourceStatus]


def statuses(follower: Subscriber | Fleet) -> dict[str, FollowedSourceStatus]:
    """Return the status of each Source by its name in a fleet, or else by its URL."""

    def read() -> dict[str, FollowedSourceStatus]:
        if isinstance(follower, Fleet):
            return follower.status
        status, url = follower.status, follower.url
        return {url: FollowedSourceStatus(Phase.FOLLOWED, status, status.error, url)}

    return call_in_loop(follower.loop, read)


def not_ready(follower: Subscriber | Fleet) -> str:
    """Return why not all copies are level, as a sentence, or '' if all are."""
    found = statuses(follower)
    late = {name: one for name, one in found.items() if standing(one) is not Standing.LEVEL}
    if not late:
        return ""
    if len(found) == 1:
        (one,) = late.values()
        reasons = one.status.doubts or (one.error or "the Source has not been read yet",)
        return f"not level: {'; '.join(reasons)}"
    names = ", ".join(list(late)[:_MAX_NAMED_SOURCES])
    names += ", …" if len(late) > _MAX_NAMED_SOURCES else ""
    return f"not level: {len(late):,} of {counted(len(found), 'Source')}: {names}"


class FollowMetrics(Collector):
    """The metrics of subscribers and fleets.

    Args:
        followers: The subscribers and fleets to measure. Their counters are added up.
        registry: Where to register the metrics, such as `prometheus_client.REGISTRY`. They can be
            registered only once.
    """

    def __init__(
        self, *followers: Subscriber | Fleet, registry: CollectorRegistry | None = None
    ) -> None:
        self._followers = followers
        if registry is not None:
            registry.register(self)

    def collect(self) -> Iterator[Metric]:
        found: dict[str, FollowedSourceStatus] = {}
        for follower in self._followers:
            found |= statuses(follower)
        yield from _of_sources(found)
        pools = [one.shared if isinstance(one, Fleet) else one for one in self._followers]
        yield from _counted(_sum([pool.counters for pool in pools]))
        responses = dict.fromkeys(_RESPONSES, 0) | reduce(
            add, (pool.connections.responses for pool in pools), Counter[str]()
        )
        yield _named.counters(
            "requests",
            "HTTP responses, by the class of their status; none: requests without a response",
            "status",
            responses,
        )
        received = sum(pool.connections.received for pool in pools)
        yield _named.counter("received_bytes", "Bytes of the content of these responses", received)


#: The metrics of each Source: name, description, and the value for its status.
_OF_SOURCES: tuple[tuple[str, str, Callable[[FollowedSourceStatus], float]], ...] = (
    (
        "level",
        "Whether the copy is level, ignoring changes that are applied within a second",
        lambda one: standing(one) is Standing.LEVEL,
    ),
    (
        "behind_seconds",
        "How long the copy has not been level; 0 if it is",
        lambda one: _age(one.status.behind_since),
    ),
    (
        "through_timestamp_seconds",
        "T, up to which every change is applied; NaN before the first baseline",
        lambda one: one.status.through.timestamp() if one.status.through else _UNKNOWN,
    ),
    (
        "push_up",
        "Whether changes arrive by push; NaN if push is off",
        lambda one: {PushState.UP: True, PushState.DOWN: False}.get(one.status.push, _UNKNOWN),
    ),
    (
        "pending",
        "Resources with changes that are known but not yet applied",
        lambda one: one.status.pending,
    ),
    ("resources", "Resources in the copy", lambda one: one.status.resources),
    (
        "failing",
        "Whether there is a failure that still has an effect",
        lambda one: one.error is not None,
    ),
)


def _age(since: datetime | None) -> float:
    return 0.0 if since is None else (datetime.now(UTC) - since).total_seconds()


def _of_sources(found: Statuses) -> Iterator[Metric]:
    for metric, about, value in _OF_SOURCES:
        values = {name: value(one) for name, one in found.items()}
        yield _named.gauges(metric, about, "source", values)
    kinds = Counter(kind for one in found.values() for kind in one.status.doubt_kinds)
    yield _named.gauges(
        "doubts",
        "Sources whose copies have a doubt, by its kind",
        "kind",
        {kind: kinds[kind] for kind in DoubtKind},
    )


def _sum(each: list[FollowCounters]) -> FollowCounters:
    total = FollowCounters()
    for name in vars(total):
        setattr(total, name, reduce(add, (getattr(one, name) for one in each)))
    return total


def _counted(counters: FollowCounters) -> Iterator[Metric]:
    yield _named.histogram(
        "lag_seconds",
        "Time from a change, by the Source's clock, until it was applied, by the local clock",
        counters.lags,
    )
    yield _named.counter("copied", "Resources that a baseline copied", counters.copied)
    yield _named.counter("fragments", "Pushed fragments", counters.fragments)
    yield _named.counter("fragment_bytes", "Bytes of these fragments", counters.fragment_bytes)
    yield _named.counter("gaps", "Gaps between T and pushed changes", counters.events[GapSeen])
    yield _named.counter(
        "push_losses",
        "Connections to hubs that were lost or failed",
        counters.push_losses,
    )
    yield _named.counter("baselines", "Comparisons of a whole set", counters.events[BaselineBegun])
    yield _named.counters(
        "pulls",
        "Pulls, by the kind of document",
        "document",
        {kind: counters.pulls[kind] for kind in DocumentKind},
    )
    yield _named.durations(
        "commit_seconds", "Transactions of the state, each with a flush", counters.commits
    )
    yield _named.durations("flush_seconds", "Flushes of the files of mirrors", counters.flushes)
