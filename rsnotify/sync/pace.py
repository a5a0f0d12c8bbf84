"""How fast a Destination follows, and how much it takes on at once."""

from __future__ import annotations

from msgspec import Struct

from rsnotify.sync.retry import Retry

#: So many listeners need no spreading.
_FEW = 100
#: How many of them are to ask a Source in a second.
_EACH_SECOND = 200
#: However many they are, a change should not wait for longer, in seconds.
_LONGEST_SPREAD = 30.0


class Pace(Struct, frozen=True):
    """What a user may tune. Times are in seconds.

    Args:
        poll: At most between two polls while push is away; after news they come sooner.
        poll_with_push: Between two polls while push works; they only confirm it.
        gap_grace: How long a gap may turn out to be mere disorder before it is pulled.
        in_flight: How many changes may be out to be applied at once.
        hold: How many changes of fragments beyond a gap are kept.
        give_up: After so many tries what cannot be had counts as such; it is tried on all the same.
        gone_after: After so long a time of 404s a resource counts as deleted. Content may lag
            behind the entry that announces it, and T waits for it meanwhile.
        lag_tries: How often a Change List is asked again for what push announced.
        baseline_after: After so many failures in a row other documents are tried, and where
            changes could not be read, a baseline.
        repair: Between two comparisons of everything, at least, because the digest that the Source
            tells is another (docs/audit.md). Where that does not help, they become rarer.
        compare: Between two comparisons with the Resource List while no digest of the Source shows
            that the copy is complete: some Sources never list their deletions.
        stale: How long a Change List may be an old copy. One that goes on and after so long still
            ends before what was told already shows that the time of the Source has gone back.
        spread: Within which time after a fragment what it names is asked for, by chance, so that
            not all who hear it ask at once; None goes by how many those are, where that is told.
            What came with its content waits for nothing.
        rate: How many resources are asked for in a second at most; None for any number.
        retry: How failures are tried again.
    """

    poll: float = 10.0
    poll_with_push: float = 60.0
    gap_grace: float = 0.1
    in_flight: int = 64
    hold: int = 20_000
    give_up: int = 5
    gone_after: float = 600.0
    lag_tries: int = 8
    baseline_after: int = 3
    repair: float = 300.0
    compare: float = 86_400.0
    stale: float = 300.0
    spread: float | None = None
    rate: float | None = None
    retry: Retry = Retry()

    def spread_among(self, listeners: int) -> float:
        """Return within which time what a fragment names is asked for.

        Args:
            listeners: How many hear the same, as far as is known.
        """
        if self.spread is not None:
            return self.spread
        return 0.0 if listeners <= _FEW else min(listeners / _EACH_SECOND, _LONGEST_SPREAD)
