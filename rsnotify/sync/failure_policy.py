"""Decides what to try next after a document could not be fetched or read."""

from __future__ import annotations

from rsnotify.errors import RsnotifyError, TooLarge, Unavailable
from rsnotify.sync.actions import Fetch
from rsnotify.sync.pace import Pace
from rsnotify.sync.pull import Pull

#: At most so many doublings of a wait.
_DOUBLINGS = 16


class FailurePolicy:
    """Counts the failures to catch up, in a row."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        #: How often in a row the Source's lists could not be followed, and why the last time.
        self.count = 0
        self.error: RsnotifyError | None = None
        #: When the first of these failures happened.
        self.since = 0.0

    def is_lasting(self, fetch: Fetch, error: RsnotifyError, pull: Pull | None) -> bool:
        """Return whether to try other documents, rather than the same one again.

        Documents of the past, packages, and documents that are too large do not improve within a
        moment. Documents of the present may; and while the Source is merely unreachable, all its
        documents are. `pull` is None for a baseline.
        """
        if pull is not None and pull.is_optional:
            return True
        is_tried = self.count + 1 >= self._pace.baseline_after or isinstance(error, TooLarge)
        at_first = pull is not None and pull.at_first
        if isinstance(error, Unavailable):
            return is_tried and error.retry_after is None and not at_first
        return is_tried or fetch.package is not None or (pull is not None and not at_first)

    def record(self, error: RsnotifyError, now: float) -> None:
        if not self.count:
            self.since = now
        self.count += 1
        self.error = error

    def needs_baseline(self) -> bool:
        """Return whether changes have been unreadable for so long that everything is compared.

        That happens after each doubling of the failures, so that a list that stays broken does not
        cost a baseline each time.
        """
        if isinstance(self.error, Unavailable):
            return False
        is_too_large = isinstance(self.error, TooLarge) and self.count == 1
        doublings = {self._pace.baseline_after << n for n in range(_DOUBLINGS)}
        return is_too_large or self.count in doublings

    def least_delay(self, *, is_dump: bool) -> float:
        """Return how long to wait at least: large documents are not downloaded over and over."""
        if not (is_dump or isinstance(self.error, TooLarge)):
            return 0.0
        return self._pace.poll * 2.0 ** min(self.count, _DOUBLINGS)

    def reset(self) -> None:
        self.count = 0
        self.error = None
