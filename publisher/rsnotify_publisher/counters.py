"""What a Source counts, for its metrics."""

from __future__ import annotations

from collections import defaultdict

from rsnotify.runtime.counters import Durations, Histogram


class HubCounters:
    """Counts since the start what one hub was sent.

    Attributes:
        fragments: Fragments, with heartbeats.
        bytes: Bytes of these fragments.
        failures: Connections that failed or could not be made, and refused fragments.
        lags: Seconds from the datetime of a change until the hub had accepted it.
    """

    def __init__(self) -> None:
        self.fragments = 0
        self.bytes = 0
        self.failures = 0
        self.lags = Histogram()


class SourceCounters:
    """Counts since the start what one set of resources has done in this process.

    Attributes:
        changes: Recorded changes.
        commits: Transactions of the journal; only their commits, with the flush, are timed.
        hubs: The counters of each hub, by its URI.
    """

    def __init__(self) -> None:
        self.changes = 0
        self.commits = Durations()
        self.hubs: defaultdict[str, HubCounters] = defaultdict(HubCounters)
