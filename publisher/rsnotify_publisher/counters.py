"""Counters for the metrics of a Source."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from rsnotify.runtime.counters import Durations, Histogram


@dataclass(eq=False)
class HubCounters:
    """Counters for one hub since the start.

    `fragments` and their `bytes` include heartbeats. `failures` counts lost connections, failed
    attempts to connect, and refused fragments. `lags` are the seconds from the datetime of a change
    until the hub accepted it.
    """

    fragments: int = 0
    bytes: int = 0
    failures: int = 0
    lags: Histogram = field(default_factory=Histogram)


@dataclass(eq=False)
class SourceCounters:
    """Counters for one set of resources in this process since the start.

    `commits` has the number of the journal's transactions, and the duration of their commits with
    the flush. `hubs` has the counters of each hub, keyed by its URI.
    """

    changes: int = 0
    commits: Durations = field(default_factory=Durations)
    hubs: defaultdict[str, HubCounters] = field(default_factory=lambda: defaultdict(HubCounters))
