"""The metrics of a Source in the Prometheus format, for `/metrics` or your own registry.

The values are read from the journals on request, or counted in memory (`SourceCounters`). The only
label is `hub`, so the number of time series stays small.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from rsnotify.errors import counted, without_credentials
from rsnotify.runtime.counters import Durations, Histogram
from rsnotify.runtime.status_endpoints import Families
from rsnotify_publisher import files
from rsnotify_publisher.counters import HubCounters
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_status import MAX_COUNTED, HubStatus, StatusReader, hub_name

_named = Families("rsnotify_source_")
_UNKNOWN = float("nan")


def not_ready(publishers: Sequence[Publisher]) -> str:
    """Return a sentence that explains why documents are missing, or "" if all are published."""
    missing = sum(not one.is_published for one in publishers)
    if not missing:
        return ""
    sets = counted(len(publishers), "set")
    return f"the documents of {missing:,} of {sets} have not been written yet"


class SourceMetrics(Collector):
    """Registers the metrics of the Publishers of one Source.

    Args:
        publishers: The Publishers to measure. Their values are added up.
        registry: The registry for the metrics, such as `prometheus_client.REGISTRY`. A registry can
            contain these metrics only once.
    """

    def __init__(self, *publishers: Publisher, registry: CollectorRegistry | None = None) -> None:
        self._publishers = publishers
        self._reader = StatusReader(publishers)
        self._lock = threading.Lock()
        if registry is not None:
            registry.register(self)

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            try:
                status = self._reader.read()
            finally:
                self._reader.close()  # there may be no later call that could close it
        published = sum(one.is_published for one in self._publishers)
        yield _named.gauge("sets", "Sets of resources", len(self._publishers))
        yield _named.gauge(
            "sets_published", "Sets whose documents have all been written", published
        )
        yield _named.gauge("resources", "Resources of all sets", status.resources)
        last = status.last_change
        yield _named.gauge(
            "last_change_timestamp_seconds",
            "Time of the last recorded change; NaN if there is none",
            _UNKNOWN if last is None else last.timestamp(),
        )
        yield _named.gauge("journal_bytes", "Size of the journals on disk", status.journal_bytes)
        counters = [one.source.counters for one in self._publishers]
        changes = sum(one.changes for one in counters)
        yield _named.counter("changes", "Changes that this process recorded", changes)
        yield _named.durations(
            "commit_seconds",
            "Transactions of the journals, and the time spent on their flushes",
            sum((one.commits for one in counters), Durations()),
        )
        yield _named.durations(
            "file_flush_seconds",
            "Documents and other files written, and the time spent on their flushes",
            files.flushes,
        )
        yield from _hubs(status.hubs, [one.source for one in self._publishers])


def _hubs(status: Sequence[HubStatus], sources: Sequence[SourceContext]) -> Iterator[Metric]:
    found = {without_credentials(hub.uri): hub for hub in status}
    yield _named.gauges(
        "hub_up",
        "Whether the hub accepts fragments; NaN if unknown",
        "hub",
        {name: _UNKNOWN if one.reached is None else one.reached for name, one in found.items()},
    )
    yield _named.gauges(
        "hub_unsent_changes",
        f"Changes that the hub lacks, at most {MAX_COUNTED:,} per set",
        "hub",
        {name: one.waiting for name, one in found.items()},
    )
    yield _named.gauges(
        "hub_through_timestamp_seconds",
        "Time up to which the hub has every change",
        "hub",
        {name: one.through.timestamp() for name, one in found.items()},
    )
    sent: dict[str, list[HubCounters]] = {}
    for source in sources:
        for hub in source.hubs:
            name = without_credentials(hub_name(hub))
            sent.setdefault(name, []).append(source.counters.hubs[hub.uri])
    for name, about, count in (
        ("hub_fragments", "Fragments sent, including heartbeats", "fragments"),
        ("hub_fragment_bytes", "Bytes of the fragments sent", "bytes"),
        ("hub_failures", "Failed connections and refused fragments", "failures"),
    ):
        values = {hub: sum(getattr(one, count) for one in each) for hub, each in sent.items()}
        yield _named.counters(name, about, "hub", values)
    yield _named.histogram(
        "hub_lag_seconds",
        "Seconds from the datetime of a change until a hub accepted it",
        sum((one.lags for each in sent.values() for one in each), Histogram()),
    )
