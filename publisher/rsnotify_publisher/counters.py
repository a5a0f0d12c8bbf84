"""Counters for the metrics of a Source."""

from __future__ import annotations

from collections import defaultdict

from rsnotify.runtime.counters import Durations, Histogram


class HubCounters:
    """Counters for one hub since the start.

    Attributes:
        fragments: The number of fragments sent, including heartbeats.
        bytes: The number of bytes in these fragments.
        failures: The number of failed connections, failed attempts to connect, and refused
            fragments.
        lags: The seconds between the datetime of a change and its acceptance by the hub.
    """

    def __init__(self) -> None:
        self.fragments = 0
        self.bytes = 0
        self.failures = 0
        self.lags = Histogram()


class SourceCounters:
    """Counters for one set of resources in this process since the start.

    Attributes:
        changes: The number of recorded changes.
        commits: The journal's transactions. Only their commits are timed, including the flush.
        hubs: The counters of each hub, keyed by its URI.
    """

    def __init__(self) -> None:
        self.changes = 0
        self.commits = Durations()
        self.hubs: defaultdict[str, HubCounters] = defaultdict(HubCounters)
