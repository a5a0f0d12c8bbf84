"""The comparison of a state with Resource Lists, and the table of resources seen in those lists.

An entry without a hash and a date does not show whether its content has changed. An entry's date
does not show it either if the Source is known to change content without changing the date. Such
resources are requested now and then.

A version is unsettled if it was fetched during the second, or day, of its `lastmod`. A later
version from the same second or day has the same `lastmod`, so without a hash no list shows it.
(Git calls such index entries racy.) Unsettled versions are refetched until that time is over:
at the first comparison of each run, and at intervals while a run continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from time import monotonic
from typing import NamedTuple

from msgspec import Struct

from rsnotify.errors import without_credentials
from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.format.model import Resource
from rsnotify.format.uris import normalize
from rsnotify.selection import describe_representation
from rsnotify_subscriber.storage.resource_state import EquivalentLookup, ResourceState, select_in
from rsnotify_subscriber.storage.state_database import StateDatabase, StateTransactions

_UNLISTED = """
SELECT coalesce(nullif(identity, ''), uri) FROM {resources} AS resources
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
#: Number of entries compared at once.
_PART = 2_000
#: Maximum number of URIs stored for being listed in two spellings.
_TWOFOLD = 100
#: Minimum time between two requests for an unsettled version, in seconds.
_BETWEEN = 900.0


class ComparedEntries(NamedTuple):
    """Entries of a Resource List that may differ from the copy.

    Args:
        differing: Entries of resources that the copy holds in another version.
        absent: Entries of resources that the copy does not hold.
        unproven: Entries that do not show whether the content has changed.
        checkable: Like `unproven`, but a conditional request shows it.
    """

    differing: list[Resource]
    absent: list[Resource]
    unproven: list[Resource]
    checkable: list[Resource]


class EntryCounts(Struct, frozen=True, array_like=True):
    """Counts of compared entries: in total, without a hash, and with neither hash nor date."""

    entries: int = 0
    unhashed: int = 0
    undated: int = 0


class BaselineTables:
    """Compares the resources of a state with the entries of Resource Lists.

    If a list has a resource under two spellings of its URI, the first entry counts, and the state
    is in doubt. `respell` stores the new spellings of resources that a list spells differently.

    Attributes:
        trusts_dates: Whether no resource is known to have changed without a new `lastmod`.
        twofold: A map from each ignored spelling of a URI to the spelling that counts.
        unsettled: When this process fetched each unsettled version, by URI.
        counts: The entries compared since the last `begin`, except for entries of packages.
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
        self.twofold = transactions.read_fact("twofold", dict[str, str]) or {}
        #: Whether a list of this baseline has a URI that is not in normal form.
        self._has_spellings = False
        self.unsettled: dict[str, float] = {}

    def begin(self) -> None:
        """Forget what an earlier baseline has seen, within a transaction."""
        self.counts = EntryCounts()
        self._database.execute("DELETE FROM {seen}")
        self._has_spellings = False
        if self.twofold:
            self.twofold = {}
            self._transactions.write_facts(twofold=self.twofold)

    def note_unsettled(self, states: Iterable[ResourceState]) -> None:
        for state in states:
            if state.is_unsettled():
                self.unsettled[state.uri] = monotonic()
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
        """Store entries of a Resource List as seen, and return those that differ from the copy.

        Resources that changed after `at`, the instant of the list, are ignored, unless their entry
        has a later `lastmod` than the copy. With `lost`, resources that the copy has lost count as
        different. `packaged` entries are not counted.
        """
        found = ComparedEntries([], [], [], [])
        with self._transactions.writing():
            entries = self._without_twofold(resources)
            remaining = iter(entries.items())
            while part := dict(islice(remaining, _PART)):
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
        """Return the resources that the copy has with exactly the hash of their entries.

        Nearly all resources match, so this takes only a third of the time of a full comparison.
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
                (found.differing if state.exists else found.absent).append(resource)
            elif entry.hash is None and (entry.lastmod is None or not self.trusts_dates):
                is_checkable = bool(state.validator and state.fetched_at)
                (found.checkable if is_checkable else found.unproven).append(resource)
        if respelled:
            self._respell(respelled)

    def _without_twofold(self, resources: Iterable[Resource]) -> dict[str, Resource]:
        """Return entries by normalized URI, and record other spellings of the same resource."""
        entries: dict[str, Resource] = {}
        twofold: dict[str, str] = {}
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
            elif len(self.twofold) + len(twofold) < _TWOFOLD:
                twofold[resource.uri] = first
        if twofold:
            self.twofold = {**self.twofold, **twofold}
            self._transactions.write_facts(twofold=self.twofold)
        return entries

    def _differs(self, state: ResourceState, entry: Resource) -> bool:
        if not state.is_as_listed(entry):
            return True
        if entry.hash is not None or entry.lastmod is None:
            return False
        if not state.is_unsettled(entry.lastmod):
            return False
        fetched = self.unsettled.get(state.uri)
        return fetched is None or monotonic() - fetched >= _BETWEEN

    def unlisted(self, at: Instant) -> list[str]:
        """Return the resources that no list of this baseline has, unless changed after `at`.

        The returned URIs are in normal form.
        """
        with self._transactions.storage_errors():
            rows = self._database.execute(_UNLISTED, (to_microseconds(at),)).fetchall()
        return [uri for (uri,) in rows]


def same_resource(other: str) -> str:
    """Return a clause saying that a URI is another spelling of a listed one."""
    return (
        f"the Source lists it and {without_credentials(other)}, which identify one resource "
        "(RFC 3986 §6.2); the copy has the latter"
    )
