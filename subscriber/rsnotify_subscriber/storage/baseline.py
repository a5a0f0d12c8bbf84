"""The comparison of a state with Resource Lists, and the table of the resources seen in them.

An entry without a hash and a date does not show whether its content has changed. Nor does its date
if the Source is known to change content without it. Such resources are requested now and then.

A version that was fetched while the second, or the day, of its `lastmod` was running is unsettled:
a later version of that unit has the same `lastmod`, so that without a hash no list shows it. (Git
calls such entries of its index racy.) Unsettled versions are fetched again until the unit is over:
at the first comparison of each run, and at intervals while a run continues.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import NamedTuple

from msgspec import Struct

from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.format.model import Resource
from rsnotify.selection.representations import describe_representation
from rsnotify_subscriber.storage.database import StateDatabase
from rsnotify_subscriber.storage.lookups import look_up_equivalent
from rsnotify_subscriber.storage.resource_state import ResourceState
from rsnotify_subscriber.storage.transaction import StateTransactions

_UNLISTED = """
SELECT uri FROM {resources} AS resources WHERE change != 'deleted' AND changed_at <= ?
    AND NOT EXISTS (SELECT 1 FROM {seen} AS seen WHERE seen.uri = resources.uri) ORDER BY uri
"""
#: Seconds between two requests for an unsettled version.
_BETWEEN = 900.0


class ComparedEntries(NamedTuple):
    """Entries of a Resource List that may differ from the copy.

    Args:
        differing: Those of resources that are held differently.
        absent: Those of resources that are not held.
        unproven: Those that do not show whether the content has changed.
        checkable: The same, where a conditional request shows it.
    """

    differing: list[Resource]
    absent: list[Resource]
    unproven: list[Resource]
    checkable: list[Resource]


class EntryCounts(Struct, frozen=True, array_like=True):
    """How many entries of a Resource List were compared, without a hash, and without a date too."""

    entries: int = 0
    unhashed: int = 0
    undated: int = 0


class BaselineTables:
    """Compares the resources of a state with the entries of Resource Lists.

    Attributes:
        trusts_dates: Whether no resource is known that has changed without a new `lastmod`.
        counts: What was compared since the last `begin`, but for the entries of packages.
    """

    def __init__(
        self, database: StateDatabase, transactions: StateTransactions, prefer: tuple[str, ...]
    ) -> None:
        self._database = database
        self._transactions = transactions
        self.prefer = prefer
        self.trusts_dates = True
        self.begin()
        #: By URI, when this process fetched unsettled versions.
        self._unsettled: dict[str, float] = {}

    def begin(self) -> None:
        """Count entries from zero."""
        self.counts = EntryCounts()

    def note_unsettled(self, states: Iterable[ResourceState]) -> None:
        for state in states:
            if state.is_unsettled():
                self._unsettled[state.uri] = monotonic()
            elif self._unsettled:
                self._unsettled.pop(state.uri, None)

    def compare(
        self,
        resources: Iterable[Resource],
        at: Instant,
        *,
        lost: bool = False,
        packaged: bool = False,
    ) -> ComparedEntries:
        """Store entries of a Resource List as seen, and return those that differ from the copy.

        Resources that changed after `at`, the instant of the list, are left alone. With `lost`,
        those that the copy has lost differ. Entries that are `packaged` are not counted.
        """
        found = ComparedEntries([], [], [], [])
        unhashed = undated = 0
        moment = to_microseconds(at)
        entries = list(resources)
        seen = {entry.uri for entry in entries}
        with self._transactions.writing():
            known = look_up_equivalent(self._database.execute, [entry.uri for entry in entries])
            seen.update(state.uri for state in known.values())  # as it is spelled here
            for resource in entries:
                state = known.get(resource.uri)
                entry = describe_representation(resource, self.prefer)
                unhashed += entry.hash is None
                undated += entry.hash is None and entry.lastmod is None
                if state is None:
                    found.absent.append(resource)
                elif state.changed_at > moment:
                    continue
                elif (lost and state.is_lost) or self._differs(state, entry):
                    (found.differing if state.exists else found.absent).append(resource)
                elif self._is_undated(entry):
                    is_checkable = bool(state.validator and state.fetched_at)
                    (found.checkable if is_checkable else found.unproven).append(resource)
            query = "INSERT INTO {seen} VALUES (?) ON CONFLICT (uri) DO NOTHING"
            self._database.executemany(query, [(uri,) for uri in seen])
        if not packaged:
            so_far = self.counts
            self.counts = EntryCounts(
                so_far.entries + len(entries), so_far.unhashed + unhashed, so_far.undated + undated
            )
        return found

    def _is_undated(self, entry: Resource) -> bool:
        return entry.hash is None and (entry.lastmod is None or not self.trusts_dates)

    def _differs(self, state: ResourceState, entry: Resource) -> bool:
        if not state.is_as_listed(entry):
            return True
        if entry.lastmod is None:
            return False
        if entry.hash is not None or not state.is_unsettled(entry.lastmod):
            return False
        fetched = self._unsettled.get(state.uri)
        return fetched is None or monotonic() - fetched >= _BETWEEN

    def unlisted(self, at: Instant) -> list[str]:
        """Return the resources, not changed after `at`, that no list of this baseline has."""
        with self._transactions.storage_errors():
            rows = self._database.execute(_UNLISTED, (to_microseconds(at),)).fetchall()
        return [uri for (uri,) in rows]
