"""Compares a state with Resource Lists, using a table of the resources seen in these lists.

An entry with neither hash nor date does not show whether the content has changed. Nor does a date
if the Source is known to change content without changing dates. Such resources are requested again
from time to time.

A version is unsettled if it was fetched within the second, or day, of its `lastmod`. A later
version from the same second or day has the same `lastmod`, so without a hash no list reveals it.
(Git calls such index entries racy.) Unsettled versions are refetched at the first comparison of
each run, then at intervals, and after the end of that second or day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from time import monotonic
from typing import NamedTuple

from msgspec import Struct

from rsnotify.errors import without_credentials
from rsnotify.format.datetimes import Instant, from_microseconds, to_microseconds
from rsnotify.format.model import Resource
from rsnotify.format.uris import normalize
from rsnotify.selection import describe_representation
from rsnotify_subscriber.storage.resource_state import EquivalentLookup, ResourceState, select_in
from rsnotify_subscriber.storage.state_database import StateDatabase, StateTransactions

_UNLISTED = """
SELECT coalesce(nullif(identity, ''), uri), changed_at FROM {resources} AS resources
    WHERE change != 'deleted' AND changed_at <= ? AND NOT EXISTS (
        SELECT 1 FROM {seen} AS seen
        WHERE seen.identity = coalesce(nullif(resources.identity, ''), resources.uri)
    ) ORDER BY uri
"""
_HASHES = """
SELECT uri, hash FROM {resources}
    WHERE change != 'deleted' AND spelling IS NULL AND coalesce(mtime, 0) != -1 AND uri IN
"""
_SEEN = "SELECT identity, coalesce(spelling, identity) FROM {seen} WHERE identity IN"
#: Number of entries to compare at once.
_BATCH_SIZE = 2_000
#: Maximum number of URIs to store that are listed in two spellings.
_MAX_DUPLICATES = 100
#: Minimum seconds between requests for an unsettled version, before the end of its second or day.
UNSETTLED_INTERVAL = 900.0


class ComparedEntries(NamedTuple):
    """Entries of a Resource List that may differ from the copy.

    Args:
        differing: Entries of resources that the copy holds in another version.
        absent: Entries of resources that the copy does not hold.
        unproven: Entries that do not show whether the content has changed.
        checkable: Entries like `unproven`, for which a conditional request is possible.
        undecided: Entries like `differing`, but the list and the copy are of the same second.
    """

    differing: list[Resource]
    absent: list[Resource]
    unproven: list[Resource]
    checkable: list[Resource]
    undecided: list[Resource]


class EntryCounts(Struct, frozen=True, array_like=True):
    """The number of compared entries: in total, without a hash, and with neither hash nor date."""

    entries: int = 0
    unhashed: int = 0
    undated: int = 0


class BaselineTables:
    """Compares the resources of a state with the entries of Resource Lists.

    If a list has two spellings of a resource's URI, the first entry is used, and there is a doubt.
    `respell` stores new spellings of URIs.

    Attributes:
        trusts_dates: Whether no resource is known to have changed without a new `lastmod`.
        duplicates: The ignored spellings of URIs, with the used spelling of each.
        unsettled: When this process fetched each unsettled version, by URI.
        long_unsettled: The URIs of those that stay unsettled for longer than `UNSETTLED_INTERVAL`.
        counts: The entries compared since the last `begin`, except entries of packages.
    """

    def __init__(
        self,
        database: StateDatabase,
        transactions: StateTransactions,
        lookup: EquivalentLookup,
        respell: Callable[[Sequence[ResourceState]], None],
        prefer: tuple[str, ...],
    ) -> None:
        self._database = database
        self._transactions = transactions
        self._lookup = lookup
        self._respell = respell
        self.prefer = prefer
        self.trusts_dates = transactions.read_fact("dates_kept", bool) is not False
        self.counts = EntryCounts()
        self.duplicates = transactions.read_fact("twofold", dict[str, str]) or {}
        #: Whether a list of this baseline has a URI that is not in normal form.
        self._has_spellings = False
        self.unsettled: dict[str, float] = {}
        self.long_unsettled: set[str] = set()

    def begin(self) -> None:
        """Forget what an earlier baseline saw. Must be called in a transaction."""
        self.counts = EntryCounts()
        self._database.execute("DELETE FROM {seen}")
        self._has_spellings = False
        if self.duplicates:
            self.duplicates = {}
            self._transactions.write_facts(twofold=self.duplicates)

    def record_unsettled(self, states: Iterable[ResourceState]) -> None:
        for state in states:
            self.long_unsettled.discard(state.uri)
            if state.is_unsettled():
                assert state.lastmod is not None
                self.unsettled[state.uri] = monotonic()
                if state.unsettled_seconds(from_microseconds(state.lastmod)) > UNSETTLED_INTERVAL:
                    self.long_unsettled.add(state.uri)
            else:
                self.unsettled.pop(state.uri, None)

    def compare(
        self,
        resources: Iterable[Resource],
        at: Instant,
        *,
        lost: bool = False,
        packaged: bool = False,
    ) -> ComparedEntries:
        """Record that entries of a Resource List were seen. Return those that may differ.

        Args:
            resources: The entries.
            at: The instant of the list. Resources that changed later are skipped, unless the entry
                has a later `lastmod` than the copy.
            lost: Whether resources that the copy has lost count as different.
            packaged: Whether to exclude the entries from `counts`.
        """
        found = ComparedEntries([], [], [], [], [])
        with self._transactions.writing():
            entries = self._without_duplicates(resources)
            remaining = iter(entries.items())
            while part := dict(islice(remaining, _BATCH_SIZE)):
                held = {
                    identity: describe_representation(resource, self.prefer)
                    for identity, resource in part.items()
                }
                if not packaged:
                    self._count(held.values())
                for identity in self._unchanged(part, held):
                    del part[identity]
                self._compare(part, held, to_microseconds(at), found, lost=lost)
            query = "INSERT INTO {seen} VALUES (?, ?) ON CONFLICT (identity) DO NOTHING"
            seen = ((key, None if key == one.uri else one.uri) for key, one in entries.items())
            self._database.executemany(query, seen)
        return found

    def _count(self, entries: Iterable[Resource]) -> None:
        hashes = [(entry.hash, entry.lastmod) for entry in entries]
        unhashed = [lastmod for hash, lastmod in hashes if hash is None]
        so_far = self.counts
        self.counts = EntryCounts(
            so_far.entries + len(hashes),
            so_far.unhashed + len(unhashed),
            so_far.undated + unhashed.count(None),
        )

    def _unchanged(self, listed: Mapping[str, Resource], held: Mapping[str, Resource]) -> list[str]:
        """Return the resources whose stored hash is exactly that of their entry.

        This shortcut usually covers nearly all resources, in a third of the time of `_compare`.
        """
        identities = [identity for identity, entry in held.items() if entry.hash is not None]
        return [
            identity
            for identity, hash in select_in(self._database.execute, _HASHES, identities)
            if hash == held[identity].hash and identity == listed[identity].uri
        ]

    def _compare(
        self,
        listed: Mapping[str, Resource],
        held: Mapping[str, Resource],
        moment: int,
        found: ComparedEntries,
        *,
        lost: bool,
    ) -> None:
        known = self._lookup.find(self._database.execute, list(listed))
        respelled: list[ResourceState] = []
        for identity, resource in listed.items():
            state, entry = known.get(identity), held[identity]
            if state is None:
                found.absent.append(resource)
                continue
            if state.changed_at > moment and not state.is_superseded_by(entry):
                continue
            if state.source_uri != resource.uri:
                respelled.append(state.respelled(resource.uri))
            if (lost and state.is_lost) or self._differs(state, entry):
                is_undecided = _is_undecided(state.changed_at, moment)
                differing = found.undecided if is_undecided else found.differing
                (differing if state.exists else found.absent).append(resource)
            elif entry.hash is None and (entry.lastmod is None or not self.trusts_dates):
                is_checkable = bool(state.validator and state.fetched_at)
                (found.checkable if is_checkable else found.unproven).append(resource)
        if respelled:
            self._respell(respelled)

    def _without_duplicates(self, resources: Iterable[Resource]) -> dict[str, Resource]:
        """Return entries by normalized URI, and store duplicates with other spellings."""
        entries: dict[str, Resource] = {}
        duplicates: dict[str, str] = {}
        given = [(normalize(resource.uri), resource) for resource in resources]
        self._has_spellings |= any(identity != one.uri for identity, one in given)
        seen: dict[str, str] = {}
        if self._has_spellings:
            identities = [identity for identity, _ in given]
            seen = dict(select_in(self._database.execute, _SEEN, identities))
        for identity, resource in given:
            first = seen.setdefault(identity, resource.uri)
            if first == resource.uri:
                entries[identity] = resource
            elif len(self.duplicates) + len(duplicates) < _MAX_DUPLICATES:
                duplicates[resource.uri] = first
        if duplicates:
            self.duplicates = {**self.duplicates, **duplicates}
            self._transactions.write_facts(twofold=self.duplicates)
        return entries

    def _differs(self, state: ResourceState, entry: Resource) -> bool:
        if not state.is_as_listed(entry):
            return True
        if entry.hash is not None or entry.lastmod is None:
            return False
        seconds = state.unsettled_seconds(entry.lastmod)
        if not seconds:
            self.long_unsettled.discard(state.uri)
            return False
        fetched = self.unsettled.get(state.uri)
        return fetched is None or monotonic() - fetched >= min(seconds, UNSETTLED_INTERVAL)

    def unlisted(self, at: Instant) -> tuple[list[str], list[str]]:
        """Return the resources in no list of this baseline, except those that changed after `at`.

        The URIs are in normal form. The second list contains the resources that changed in the
        second of `at`, either before or after.
        """
        moment = to_microseconds(at)
        with self._transactions.storage_errors():
            rows = self._database.execute(_UNLISTED, (moment,)).fetchall()
        found: tuple[list[str], list[str]] = [], []
        for uri, changed_at in rows:
            found[_is_undecided(changed_at, moment)].append(uri)
        return found


def _is_undecided(changed_at: int, moment: int) -> bool:
    """Return whether a change and a list have the same datetime in whole seconds.

    Either may be the later one. Both arguments are in microseconds.
    """
    return changed_at == moment and moment % 1_000_000 == 0


def same_resource(other: str) -> str:
    """Return a clause saying that the Source lists a URI in two spellings."""
    return (
        f"the Source lists it and {without_credentials(other)}, which identify the same resource "
        "(RFC 3986 §6.2); the copy uses the latter"
    )
