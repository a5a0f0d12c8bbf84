"""Settings for a Destination's speed, concurrency and retries."""

from __future__ import annotations

from msgspec import Struct

from rsnotify.sync.retry import Retry

#: Maximum number of subscribers that send their requests without a random delay.
_MAX_UNSPREAD_SUBSCRIBERS = 100
#: Number of subscribers whose requests a Source receives per second.
_SUBSCRIBERS_PER_SECOND = 200
#: Maximum random delay before a request, in seconds.
_MAX_SPREAD_SECONDS = 30.0


class Pace(Struct, frozen=True):
    """Settings for tuning. Times are in seconds.

    Args:
        poll: Maximum time between polls while push is down. Polls are more frequent after news.
        poll_with_push: Time between polls while push works, to confirm the pushed changes.
        gap_grace: Time to wait before pulling a gap, because fragments may arrive out of order.
        in_flight: Maximum number of changes to apply concurrently.
        hold: Maximum number of changes to keep from fragments beyond a gap.
        give_up: Number of failures after which a resource counts as unavailable. T no longer waits
            for the resource, and retries become less frequent.
        patience: Time after which a resource also counts as unavailable while its server is down,
            busy or failing.
        gone_after: Time after which a resource that keeps returning 404 counts as deleted. T waits
            until then, because content may lag behind the entry that announces it.
        lag_tries: Number of times to reread a Change List that lacks pushed changes.
        baseline_after: Number of consecutive failures after which to try other documents or, if
            no list of changes is readable, a baseline.
        repair: Minimum time between full comparisons after the Source's digest differs from the
            copy's (docs/audit.md). The time doubles while comparisons do not help.
        compare: Time between comparisons with the Resource List, unless a digest from the Source
            confirms that the copy is complete. Some Sources never list their deletions.
        stale: Maximum age of a cached or replicated Change List. If updated lists still lack known
            changes after this time, the Source's clock has gone back.
        spread: Time over which subscribers spread their requests for resources in a fragment. Each
            waits for a random part of it. None derives the time from the number of subscribers, if
            known. Inline content is applied without a delay.
        rate: Maximum number of resources to fetch per second; None for no limit.
        retry: The backoff after failures.
        parked: Maximum number of resources to keep in memory until all lists are read. The state
            keeps all others.
    """

    poll: float = 10.0
    poll_with_push: float = 60.0
    gap_grace: float = 0.1
    in_flight: int = 256
    hold: int = 20_000
    give_up: int = 5
    patience: float = 60.0
    gone_after: float = 600.0
    lag_tries: int = 8
    baseline_after: int = 3
    repair: float = 300.0
    compare: float = 86_400.0
    stale: float = 300.0
    spread: float | None = None
    rate: float | None = None
    retry: Retry = Retry()
    parked: int = 2_000

    def spread_among(self, listeners: int) -> float:
        """Return the time over which to spread the requests of this many subscribers."""
        if self.spread is not None:
            return self.spread
        if listeners <= _MAX_UNSPREAD_SUBSCRIBERS:
            return 0.0
        return min(listeners / _SUBSCRIBERS_PER_SECOND, _MAX_SPREAD_SECONDS)
