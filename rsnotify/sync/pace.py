"""How fast a Destination follows, and how much it does at once."""

from __future__ import annotations

from msgspec import Struct

from rsnotify.sync.retry import Retry

#: The requests of this many subscribers are not spread.
_FEW = 100
#: How many subscribers may send a request to a Source within a second.
_EACH_SECOND = 200
#: The longest spread, however many subscribers there are, in seconds.
_LONGEST_SPREAD = 30.0


class Pace(Struct, frozen=True):
    """The settings that a user may tune. Times are in seconds.

    Args:
        poll: The longest time between two polls while push is down; after news they come sooner.
        poll_with_push: The time between two polls while push works; they only confirm it.
        gap_grace: How long to wait before a gap is pulled, as fragments may be out of order.
        in_flight: How many changes may be applied at the same time.
        hold: How many changes of fragments beyond a gap are kept.
        give_up: After this many failures a resource counts as unavailable: T does not wait for it,
            and it is retried less and less often.
        patience: After this time a resource counts as unavailable, too, if its server fails, is
            busy or does not answer.
        gone_after: A resource that has returned 404 for this long counts as deleted. Content may
            lag behind the entry that announces it, and T waits for it meanwhile.
        lag_tries: How often a Change List is read again for changes that push announced.
        baseline_after: After this many failures in a row other documents are tried, and if changes
            could not be read, a baseline.
        repair: The shortest time between two comparisons of everything that follow from a digest of
            the Source that differs (docs/audit.md). They become rarer if they do not help.
        compare: The time between two comparisons with the Resource List while no digest of the
            Source shows that the copy is complete: some Sources never list their deletions.
        stale: How long a Change List may be an old copy. If lists that go on still end before
            what was listed earlier after this time, the Source's clock has gone back.
        spread: The resources that a fragment names are fetched at a random moment within this
            time, so that not all subscribers send requests at once. None derives it from the
            number of subscribers, if that is known. Inline content waits for nothing.
        rate: The largest number of resources to fetch in a second; None for no limit.
        retry: How failures are retried.
        parked: How many resources wait in memory until all lists are read; further ones wait in the
            state.
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
        """Return the time over which the requests of this many subscribers are spread."""
        if self.spread is not None:
            return self.spread
        return 0.0 if listeners <= _FEW else min(listeners / _EACH_SECOND, _LONGEST_SPREAD)
