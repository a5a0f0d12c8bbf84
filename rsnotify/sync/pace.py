"""Settings for the speed and concurrency of a Destination."""

from __future__ import annotations

from msgspec import Struct

from rsnotify.sync.retry import Retry

#: Maximum number of subscribers whose requests are not spread.
_FEW = 100
#: Number of subscribers that may send a request to a Source within one second.
_EACH_SECOND = 200
#: Maximum spread in seconds, regardless of the number of subscribers.
_LONGEST_SPREAD = 30.0


class Pace(Struct, frozen=True):
    """The settings that a user may tune. Times are in seconds.

    Args:
        poll: Maximum time between two polls while push is down. After news, polls come sooner.
        poll_with_push: Time between two polls while push works. They only confirm it.
        gap_grace: Time to wait before pulling a gap, because fragments may be out of order.
        in_flight: Maximum number of changes being applied at the same time.
        hold: Maximum number of changes to keep from fragments beyond a gap.
        give_up: Number of failures after which a resource counts as unavailable. T then does not
            wait for it, and it is retried less and less often.
        patience: Time after which a resource also counts as unavailable if its server fails, is
            busy or does not answer.
        gone_after: Time after which a resource that keeps returning 404 counts as deleted. Content
            may lag behind the entry that announces it, and T waits for it until then.
        lag_tries: Number of times to reread a Change List for changes that push announced.
        baseline_after: Number of consecutive failures after which to try other documents or, if
            changes could not be read, a baseline.
        repair: Minimum time between two comparisons of everything that a differing digest from the
            Source causes (docs/audit.md). They become rarer if they do not help.
        compare: Time between two comparisons with the Resource List while no digest from the Source
            shows that the copy is complete. Some Sources never list their deletions.
        stale: Maximum time for which a Change List may be an old copy. If, after this time, lists
            that keep changing still end before changes listed earlier, the Source's clock has gone
            back.
        spread: Time within which the resources named by a fragment are fetched, at a random moment,
            so that subscribers do not all send requests at once. None derives it from the number of
            subscribers, if known. Inline content never waits.
        rate: Maximum number of resources to fetch per second; None for no limit.
        retry: The backoff after failures.
        parked: Maximum number of resources that wait in memory until all lists are read. Others
            wait in the state.
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
        return 0.0 if listeners <= _FEW else min(listeners / _EACH_SECOND, _LONGEST_SPREAD)
