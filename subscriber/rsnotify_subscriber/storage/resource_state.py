"""The state of a resource in the copy: how to look it up, and whether a change is new to it.

A resource is stored under the spelling of its URI that the Source used first. Any other spelling
finds it by its normal form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from enum import Enum
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.datetimes import (
    Instant,
    end_of_unit,
    from_microseconds,
    is_undecided,
    postponed,
    to_microseconds,
)
from rsnotify.format.hashes import agree
from rsnotify.format.model import ChangeType, Resource
from rsnotify.format.uris import normalize
from rsnotify_subscriber.storage.state_database import Row, StateDatabase

#: The `mtime` of a resource whose content the copy has lost.
LOST = -1
#: HTTP dates are in whole seconds.
_SECOND = timedelta(seconds=1)


class Novelty(Enum):
    """How to handle a change, given the state of its resource."""

    #: Do nothing: this change or a later one was applied.
    COVERED = "covered"
    #: Apply the announced change.
    APPLY = "apply"
    #: Fetch the current version of the resource instead.
    FETCH = "fetch"


class ResourceState(Struct, frozen=True):
    """The state of a resource in the copy. The state of a deletion is kept until it is confirmed.

    Datetimes are in microseconds since 1970.

    Args:
        uri: The URI as the Source first spelled it, which is the resource's name in the copy.
        changed_at: The datetime of the last applied change.
        change: The type of that change.
        hash: The digests of the content, as a `hash` attribute. None if a crash before a commit has
            made the content unknown.
        length: The length of the content in bytes.
        lastmod: The `lastmod` that the Source listed.
        validator: The header field for a conditional request, if every later version has another.
        fetched_at: When the Source's own server last sent or confirmed the content, by its clock.
            0 if it has no clock. None if the content came by push, in a package or from a mirror.
        mtime: The modification time (ns) of the file that was written. 0 if there is no file,
            `LOST` if the copy has lost the content, None if unknown (as in a state from an earlier
            version). Storing None keeps the previous value.
        spelling: The URI as the Source last spelled it, if that differs from `uri`.
    """

    uri: str
    changed_at: int
    change: str
    hash: str | None = None
    length: int | None = None
    lastmod: int | None = None
    validator: str | None = None
    fetched_at: int | None = None
    mtime: int | None = None
    spelling: str | None = None

    @property
    def source_uri(self) -> str:
        """The URI as the Source last spelled it."""
        return self.spelling or self.uri

    @property
    def is_lost(self) -> bool:
        return self.mtime == LOST and self.exists and self.hash is not None

    @property
    def keeps_lost(self) -> bool:
        """Whether storing this state keeps a lost resource lost."""
        return self.mtime is None and self.exists and self.hash is not None

    def without_content(self) -> ResourceState:
        """Return a state that matches no announced content, so that it is fetched."""
        return replace(self, hash=None, length=None, lastmod=None, validator=None, fetched_at=None)

    def respelled(self, uri: str) -> ResourceState:
        """Return the state with the Source's last spelling of the URI."""
        spelling = None if uri == self.uri else uri
        return self if spelling == self.spelling else replace(self, spelling=spelling)

    @property
    def exists(self) -> bool:
        return self.change != ChangeType.DELETED

    def covers(self, change: Change) -> bool:
        """Return whether, by the datetimes, this change or a later one was applied."""
        if self.exists and deletes(change, self.hash, self.lastmod):
            return False
        if change.resource.change is None and self.is_superseded_by(change.resource):
            return False
        at = to_microseconds(change.at)
        if self.changed_at != at or change.resource.change is None:
            # An entry of a Resource List is here only because it differs.
            return self.changed_at > at
        if self.change != change.change.value:
            return False
        if not self.exists:
            return True
        same = agree(self.hash, change.resource.hash)
        # A datetime in whole seconds may stand for several changes.
        return same if same is not None else change.at.microsecond != 0

    def novelty(self, change: Change) -> Novelty:
        """Return how to handle a change, according to its `check`."""
        if change.check is CheckMethod.FETCH:
            return Novelty.FETCH
        if self._is_undecided(change):
            return Novelty.COVERED if self._agrees(change) else Novelty.FETCH
        if change.check is CheckMethod.COMPARE and self.changed_at >= to_microseconds(change.at):
            if self._agrees(change):
                return Novelty.COVERED
            if needs_request(change, self.lastmod):
                return Novelty.APPLY
            if change.change is ChangeType.DELETED:
                # The server may have contradicted it before; the resource is then dated like it.
                is_proven = deletes(change, self.hash, self.lastmod)
                return Novelty.APPLY if is_proven else Novelty.FETCH
            return Novelty.FETCH if self.covers(change) else Novelty.APPLY
        if not self.covers(change) or (self.exists and is_undated(change)):
            return Novelty.APPLY
        return Novelty.FETCH if self._is_unconfirmed(change) else Novelty.COVERED

    def _is_undecided(self, change: Change) -> bool:
        """Return whether the change's datetime is too coarse to order it and this version."""
        stated = change.stated_at
        if not stated.fold or self.changed_at == to_microseconds(stated):
            return False
        return is_undecided(stated, from_microseconds(self.changed_at))

    def _agrees(self, change: Change) -> bool:
        """Return whether the copy matches the last entry of the resource."""
        if change.change is ChangeType.DELETED or not self.exists:
            return change.change is ChangeType.DELETED and not self.exists
        entry = change.resource
        same = agree(self.hash, entry.hash)
        if same is not None:
            return same
        if entry.length not in (None, self.length) or self.hash is None:
            return False
        if needs_request(change, self.lastmod):
            return False
        listed, stored = entry.lastmod, self.lastmod
        if listed and stored is not None and to_microseconds(end_of_unit(listed)) <= stored:
            return False  # the Source was restored, and the copy has a later version
        if self._is_fetched_after(max(change.at, change.stated_at), by=_SECOND):
            return True
        if listed and stored is not None:
            if to_microseconds(listed) != stored:
                return False
            if entry.length is not None and self._is_fetched_after(listed):
                return True
        return self.fetched_at is None  # as in a state from an earlier version

    def _is_unconfirmed(self, change: Change) -> bool:
        """Return whether a list repeats a change whose content came only from a hub."""
        return (
            self.exists
            and self.fetched_at is None
            and self.hash is not None
            and change.resource.hash is None
            and change.resource.change is not None
            and change.package is None
            and self.changed_at == to_microseconds(change.at)
        )

    def _is_fetched_after(self, instant: Instant, *, by: timedelta = timedelta()) -> bool:
        """Return whether the content was fetched after the end of an instant's second, or day."""
        return self.fetched_at is not None and (
            self.fetched_at >= to_microseconds(postponed(end_of_unit(instant), by))
        )

    def may_be_later_than(self, change: Change) -> bool:
        """Return whether the content differs from a compared change, and was fetched after it.

        A verified version has the datetime of the change that it verifies. The change may be from
        an old copy of a list, from a cache.
        """
        if change.check is not CheckMethod.COMPARE or change.resource.change is None:
            return False
        differs = agree(self.hash, change.resource.hash) is False
        return self.exists and differs and self._is_fetched_after(change.at)

    def is_unsettled(self, lastmod: Instant | None = None) -> bool:
        """Return whether the content was fetched within the unit of time of its `lastmod`.

        It may have changed again within that unit (a second or a day, for example). `lastmod` is
        the value in the current entry. Otherwise, the unit of the stored `lastmod` is unknown, and
        may be anything up to a year.
        """
        return self.unsettled_seconds(lastmod) > 0

    def unsettled_seconds(self, lastmod: Instant | None = None) -> float:
        """Return how long after its request the content is unsettled; see `is_unsettled`."""
        if self.lastmod is None or not self.fetched_at or self.lastmod % 1_000_000:
            return 0.0
        end = end_of_unit(lastmod or from_microseconds(self.lastmod).replace(fold=1))
        return max(0, to_microseconds(end) - self.fetched_at) / 1_000_000

    def is_superseded_by(self, resource: Resource) -> bool:
        """Return whether an entry of a Resource List has a later `lastmod` and other content.

        Because clocks may be set back, the list may be dated before this version.
        """
        if not self.exists or self.lastmod is None or resource.lastmod is None:
            return False
        return to_microseconds(resource.lastmod) > self.lastmod and not self.is_as_listed(resource)

    def is_as_listed(self, resource: Resource) -> bool:
        """Return whether an entry of a Resource List describes this version.

        An entry with neither hash nor date describes every version.
        """
        if not self.exists:
            return False
        same = agree(self.hash, resource.hash)
        if same is not None or (resource.lastmod is None and resource.hash is not None):
            return same is True
        if resource.length not in (None, self.length):
            return False
        if resource.lastmod is None:
            return self.hash is not None
        return self.lastmod == to_microseconds(resource.lastmod)


def is_undated(change: Change) -> bool:
    """Return whether an entry shows neither when a resource changed, nor its new content."""
    entry = change.resource
    return (
        change.change is not ChangeType.DELETED
        and entry.change is not None
        and entry.hash is None
        and entry.changed_at is None
    )


def needs_request(change: Change, lastmod: int | None) -> bool:
    """Return whether only a request shows if an entry describes the version with this `lastmod`.

    `lastmod` is in microseconds. It may be older than the change (core §7), because a restored file
    keeps its date.
    """
    entry = change.resource
    if is_undated(change):
        return True
    if change.change is ChangeType.DELETED or entry.change is None or entry.hash is not None:
        return False
    if entry.datetime is not None or entry.lastmod is None:
        return False
    return lastmod != to_microseconds(entry.lastmod)


def deletes(change: Change, hash: str | None, lastmod: int | None) -> bool:
    """Return whether a change deletes the version with this hash or `lastmod` (in microseconds).

    If so, it is later than that version, whatever its datetime: some Sources date a deletion with
    the last modification of the deleted version.
    """
    if not change.dated_by_lastmod:
        return False
    same = agree(hash, change.resource.hash)
    if same is not None or lastmod is None or change.resource.lastmod is None:
        return same is True
    return lastmod == to_microseconds(change.resource.lastmod)


_COLUMNS = """
uri, changed_at, change, hash, length, lastmod, validator, fetched_at, mtime, spelling
"""
_FIND = f"SELECT {_COLUMNS} FROM {{resources}} WHERE uri IN"
_FIND_IDENTITY = (
    f"SELECT {_COLUMNS}, identity FROM {{resources}} WHERE identity != '' AND identity IN"
)
_UNIDENTIFIED = (
    "SELECT uri FROM {resources} WHERE identity IS NULL AND uri > ? ORDER BY uri LIMIT ?"
)
_IDENTIFY = "UPDATE {resources} SET identity = ? WHERE uri = ?"
#: Number of resources to look up in one query.
_BATCH_SIZE = 500

#: A function that runs a query with its parameters.
Query = Callable[[str, Sequence[object]], Iterable[Row]]


def look_up(query: Query, uris: Sequence[str]) -> dict[str, ResourceState]:
    """Return the states of known resources, keyed by their URIs as stored."""
    return {row[0]: ResourceState(*row) for row in select_in(query, _FIND, uris)}


class EquivalentLookup:
    """Finds resources by any spelling of their URIs.

    Attributes:
        has_spellings: Whether any stored URI is not in normal form.
    """

    has_spellings = False

    def find(self, query: Query, uris: Sequence[str]) -> dict[str, ResourceState]:
        """Return the states of known resources, keyed by the given URIs."""
        found = look_up(query, uris)
        others: dict[str, list[str]] = {}
        for uri in uris:
            state = found.get(uri)
            if state is None or not state.exists:
                others.setdefault(normalize(uri), []).append(uri)
        if not others:
            return found
        candidates: dict[str, list[ResourceState]] = {}
        if self.has_spellings:
            for *columns, identity in select_in(query, _FIND_IDENTITY, list(others)):
                candidates.setdefault(identity, []).append(ResourceState(*columns))
        spelled = [identity for identity, given in others.items() if given != [identity]]
        for uri, state in look_up(query, spelled).items():
            candidates.setdefault(uri, []).append(state)
        for identity, states in candidates.items():
            best = max(states, key=lambda state: (state.exists, state.changed_at))
            for uri in others[identity]:
                if best.exists or uri not in found:
                    found[uri] = best
        return found


def select_in(query: Query, sql: str, values: Sequence[object]) -> Iterator[Row]:
    """Yield the rows for the given values. The query must end with `IN`."""
    for begin in range(0, len(values), _BATCH_SIZE):
        batch = values[begin : begin + _BATCH_SIZE]
        yield from query(_with_placeholders(sql, len(batch)), batch)


@lru_cache(64)
def _with_placeholders(sql: str, count: int) -> str:
    return f"{sql} ({', '.join('?' * count)})"


def pages(query: Query, sql: str, limit: int = 10_000) -> Iterator[list[Row]]:
    """Yield the rows of a query in pages. Each begins after the last URI of the previous one."""
    after = ""
    while rows := list(query(sql, (after, limit))):
        yield rows
        after = rows[-1][0]


def identity_of(uri: str) -> str:
    """Return the identity to store for a resource: empty if its URI is in normal form."""
    identity = normalize(uri)
    return "" if identity == uri else identity


def add_missing_identities(database: StateDatabase) -> bool:
    """Add the identities that an earlier version did not store. Must be called in a transaction.

    Of several resources with the same identity, all but one keep their URIs as identities. No list
    has such a URI, so the next comparison removes these resources.

    Returns:
        Whether several resources have the same identity.
    """
    has_same = False
    for rows in pages(database.execute, _UNIDENTIFIED):
        identities = {uri: identity_of(uri) for (uri,) in rows}
        spelled = [identity for identity in identities.values() if identity]
        taken = set(look_up(database.execute, spelled))
        taken.update(row[-1] for row in select_in(database.execute, _FIND_IDENTITY, spelled))
        for uri, identity in identities.items():
            if identity in taken:
                has_same, identities[uri] = True, ""
            elif identity:
                taken.add(identity)
        database.executemany(_IDENTIFY, [(each, uri) for uri, each in identities.items()])
    return has_same
