"""The metrics of Destinations in the Prometheus format, for `/metrics` or a custom registry.

They are read from existing state on request, and counted if there is no such state
(`FollowCounters`). The only labels for Sources are the names that the user gave them, with few
metrics each. All other metrics are totals of the process, so that a fleet of thousands of Sources
has few series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import reduce
from operator import add

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from rsnotify.errors import counted
from rsnotify.runtime.status_server import Families
from rsnotify.runtime.tasks import call_in_loop
from rsnotify.sync.actions import DocumentKind
from rsnotify.sync.doubts import DoubtKind
from rsnotify_subscriber.events import BaselineBegun, FollowCounters, GapSeen, PushState
from rsnotify_subscriber.fleet.fleet import (
    Fleet,
    FollowedSourceStatus,
    Phase,
    Standing,
    standing,
)
from rsnotify_subscriber.subscriber import Subscriber

_named = Families("rsnotify_follow_")
_UNKNOWN = float("nan")
_RESPONSES = ("2xx", "3xx", "4xx", "5xx", "none")
#: Maximum number of Sources named in a sentence.
_SHOWN = 3

Statuses = Mapping[str, FollowedSourceStatus]


def statuses(follower: Subscriber | Fleet) -> dict[str, FollowedSourceStatus]:
    """Return the status of each Source: by its name in a fleet, or else by its URL."""

    def read() -> dict[str, FollowedSourceStatus]:
        if isinstance(follower, Fleet):
            return follower.status
        status, url = follower.status, follower.url
        return {url: FollowedSourceStatus(Phase.FOLLOWED, status, status.error, url)}

    return call_in_loop(follower.loop, read)


def not_ready(follower: Subscriber | Fleet) -> str:
    """Return a sentence saying why not all copies are level, or '' if they are."""
    found = statuses(follower)
    late = {name: one for name, one in found.items() if standing(one) is not Standing.LEVEL}
    if not late:
        return ""
    if len(found) == 1:
        (one,) = late.values()
        reasons = one.status.doubts or (one.error or "the Source has not been read yet",)
        return f"not level: {'; '.join(reasons)}"
    names = ", ".join(list(late)[:_SHOWN]) + (", …" if len(late) > _SHOWN else "")
    return f"not level: {len(late):,} of {counted(len(found), 'Source')}: {names}"


class FollowMetrics(Collector):
    """Registers the metrics of subscribers and fleets.

    Args:
        followers: The subscribers and fleets to measure. Their counters are summed.
        registry: The registry for the metrics, such as `prometheus_client.REGISTRY`. A registry can
            have these metrics only once.
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
        yield from _counted([pool.counters for pool in pools])
        responses = dict.fromkeys(_RESPONSES, 0) | reduce(
            add, (pool.connections.responses for pool in pools), Counter[str]()
        )
        yield _named.counters(
            "requests",
            "HTTP responses by the class of their status; none: requests without a response",
            "status",
            responses,
        )
        received = sum(pool.connections.received for pool in pools)
        yield _named.counter("received_bytes", "Bytes of the content of these responses", received)


def _of_sources(found: Statuses) -> Iterator[Metric]:
    def each(name: str, about: str, values: Mapping[str, float]) -> Metric:
        return _named.gauges(name, about, "source", values)

    now = datetime.now(UTC)
    status = {name: one.status for name, one in found.items()}
    yield each(
        "level",
        "Whether the copy is level; changes that are applied within a second do not count",
        {name: standing(one) is Standing.LEVEL for name, one in found.items()},
    )
    yield each(
        "behind_seconds",
        "How long the copy has not been level; 0 if it is",
        {
            name: 0.0 if one.behind_since is None else (now - one.behind_since).total_seconds()
            for name, one in status.items()
        },
    )
    yield each(
        "through_timestamp_seconds",
        "T, up to which every change is applied; NaN before the first baseline",
        {
            name: _UNKNOWN if one.through is None else one.through.timestamp()
            for name, one in status.items()
        },
    )
    yield each(
        "push_up",
        "Whether changes arrive by push; NaN if the Source offers no push that is used",
        {
            name: _UNKNOWN if one.push is PushState.OFF else one.push is PushState.UP
            for name, one in status.items()
        },
    )
    yield each(
        "pending",
        "Resources with changes that are known and not applied",
        {name: one.pending for name, one in status.items()},
    )
    yield each(
        "resources",
        "Resources that the copy has",
        {name: one.resources for name, one in status.items()},
    )
    yield each(
        "failing",
        "Whether the last attempt at something failed and was not made good",
        {name: one.error is not None for name, one in found.items()},
    )
    kinds = Counter(kind for one in status.values() for kind in one.doubt_kinds)
    yield _named.gauges(
        "doubts",
        "Sources whose copies have a doubt, by its kind",
        "kind",
        {kind: kinds[kind] for kind in DoubtKind},
    )


def _counted(each: list[FollowCounters]) -> Iterator[Metric]:
    events = reduce(add, (one.events for one in each))
    pulls = reduce(add, (one.pulls for one in each))
    yield _named.histogram(
        "lag_seconds",
        "From the datetime of a change to when it was applied, by the clocks of both",
        reduce(add, (one.lags for one in each)),
    )
    yield _named.counter(
        "copied", "Resources that a baseline copied", sum(one.copied for one in each)
    )
    yield _named.counter("fragments", "Pushed fragments", sum(one.fragments for one in each))
    size = sum(one.fragment_bytes for one in each)
    yield _named.counter("fragment_bytes", "Bytes of these fragments", size)
    yield _named.counter("gaps", "Gaps between T and what was pushed", events[GapSeen])
    losses = sum(one.push_losses for one in each)
    yield _named.counter(
        "push_losses", "Connections to hubs that were lost, or could not be made", losses
    )
    yield _named.counter("baselines", "Comparisons of a whole set", events[BaselineBegun])
    yield _named.counters(
        "pulls",
        "Pulls by the kind of document",
        "document",
        {kind: pulls[kind] for kind in DocumentKind},
    )
    yield _named.durations(
        "commit_seconds",
        "Transactions of the state, each with a flush",
        reduce(add, (one.commits for one in each)),
    )
    yield _named.durations(
        "flush_seconds",
        "Flushes of the files of mirrors",
        reduce(add, (one.flushes for one in each)),
    )
