"""Versions that were fetched while the second, or the day, of their `lastmod` was running.

A later version of that unit has the same `lastmod`, so that without a hash no list shows it. Git
calls such entries of its index racy. They are fetched again until the unit is over: at the first
comparison of each run, and while one goes on, now and then.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

from rsnotify_subscriber.storage.resource_state import ResourceState

#: Seconds between two requests for a resource that is not settled.
_BETWEEN = 900.0


class UnsettledVersions:
    """What was fetched lately, by this process, and may have changed since."""

    def __init__(self) -> None:
        self._fetched: dict[str, float] = {}

    def note(self, held: Iterable[ResourceState]) -> None:
        """Note how resources are held from now on."""
        for one in held:
            if one.lastmod is not None and one.is_unsettled:
                self._fetched[one.uri] = monotonic()
            elif self._fetched:
                self._fetched.pop(one.uri, None)

    def is_due(self, uri: str) -> bool:
        """Return whether it is time to fetch a resource again that is not settled."""
        fetched = self._fetched.get(uri)
        return fetched is None or monotonic() - fetched >= _BETWEEN
