"""The state of a resource in the copy, how to look it up, and whether a change is new to it.

A resource is stored under the spelling of its URI that the Source used first, and is found under
any other spelling by the normal form.
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
    #: Apply the change as it was announced.
    APPLY = "apply"
    #: Fetch the resource itself, and store its current version.
    FETCH = "fetch"


class ResourceState(Struct, frozen=True):
    """The state of a resource in the copy. A deletion's state is kept until it is confirmed.

    Datetimes are in microseconds since 1970.

    Args:
        uri: The URI as the Source first wrote it, which is the resource's name in the copy.
        changed_at: The datetime of the change that led to this state.
        change: The type of that change.
        hash: The digests of the content, in the form of a `hash` attribute. None if the content is
            unknown because of a crash between applying and committing it.
        length: The length of the content in bytes.
        lastmod: The `lastmod` that the Source listed.
        validator: The header field for a conditional request. It is stored only if no later version
            can have the same one.
        fetched_at: When the Source's own server last sent or confirmed the content, by its clock.
            0 if it has no clock, None if the content came by push, in a package or from a mirror.
        mtime: The modification time of the file (ns) as it was written. 0 if there is no file,
            `LOST` if the copy no longer has the content. None if it is unknown, as in a state from
            an earlier version, or if the stored value should stay.
        spelling: The URI as the Source last wrote it, if that differs from `uri`.
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
        """The URI as the Source last wrote it."""
        return self.spelling or self.uri

    @property
    def is_lost(self) -> bool:
        return self.mtime == LOST and self.exists and self.hash is not None

    @property
    def keeps_lost(self) -> bool:
        """Whether a lost resource is still lost after this state is stored."""
        return self.mtime is None and self.exists and self.hash is not None

    def without_content(self) -> ResourceState:
        """Return a state for which the content has to be fetched, regardless of announcements."""
        return replace(self, hash=None, length=None, lastmod=None, validator=None, fetched_at=None)

    def respelled(self, uri: str) -> ResourceState:
        """Return the state after the Source has spelled the URI this way."""
        spelling = None if uri == self.uri else uri
        return self if spelling == self.spelling else replace(self, spelling=spelling)

    @property
    def exists(self) -> bool:
        return self.change != ChangeType.DELETED

    def covers(self, change: Change) -> bool:
        """Return whether, judging by its datetime, this change or a later one was applied."""
        if self.exists and deletes(change, self.hash, self.lastmod):
            return False
        if change.resource.change is None and self.is_superseded_by(change.resource):
            return False
        at = to_microseconds(change.at)
        if self.changed_at != at or change.resource.change is None:
            # An entry of a Resource List has already been compared and found to differ.
            return self.changed_at > at
        if self.change != change.change.value:
            return False
        if not self.exists:
            return True
        same = agree(self.hash, change.resource.hash)
        # A datetime in whole seconds may stand for several changes.
        return same if same is not None else change.at.microsecond != 0

    def novelty(self, change: Change) -> Novelty:
        """Return how to handle a change, by the method of its `check`."""
        if change.check is CheckMethod.FETCH:
            return Novelty.FETCH
        if self._is_undecided(change):
            return Novelty.COVERED if self._agrees(change) else Novelty.FETCH
        if change.check is CheckMethod.COMPARE and self.changed_at >= to_microseconds(change.at):
            if self._agrees(change):
                return Novelty.COVERED
            if needs_request(change, self.lastmod):
                return Novelty.APPLY
            return Novelty.FETCH if self.covers(change) else Novelty.APPLY
        if not self.covers(change) or (self.exists and is_undated(change)):
            return Novelty.APPLY
        return Novelty.FETCH if self._is_unconfirmed(change) else Novelty.COVERED

    def _is_undecided(self, change: Change) -> bool:
        """Return whether the coarse datetime of a change may be before or after this version's."""
        stated = change.stated_at
        if not stated.fold or self.changed_at == to_microseconds(stated):
            return False
        return is_undecided(stated, from_microseconds(self.changed_at))

    def _agrees(self, change: Change) -> bool:
        """Return whether the copy matches this change, the last entry of the resource."""
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
        if self._is_fetched_after(max(change.at, change.stated_at), by=_SECOND):
            return True
        if entry.lastmod is not None and self.lastmod is not None:
            if to_microseconds(entry.lastmod) != self.lastmod:
                return False
            if entry.length is not None and self._is_fetched_after(entry.lastmod):
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
        """Return whether the content was fetched after the end of an instant's unit of time."""
        return self.fetched_at is not None and (
            self.fetched_at >= to_microseconds(postponed(end_of_unit(instant), by))
        )

    def is_unsettled(self, lastmod: Instant | None = None) -> bool:
        """Return whether the content was fetched within the unit of time of its `lastmod`.

        The unit is a second, for example. The content may have changed again within it. `lastmod`
        is the value that an entry states now. Without it, the stored `lastmod` may have been
        written without seconds, or without a day or a month.
        """
        if self.lastmod is None or not self.fetched_at or self.lastmod % 1_000_000:
            return False
        return not self._is_fetched_after(
            lastmod or from_microseconds(self.lastmod).replace(fold=1)
        )

    def is_superseded_by(self, resource: Resource) -> bool:
        """Return whether an entry of a Resource List has a later `lastmod` and other content.

        The list may nevertheless be dated before this version, by a clock that went back.
        """
        if not self.exists or self.lastmod is None or resource.lastmod is None:
            return False
        return to_microseconds(resource.lastmod) > self.lastmod and not self.is_as_listed(resource)

    def is_as_listed(self, resource: Resource) -> bool:
        """Return whether an entry of a Resource List describes this version.

        An entry without a hash and a date describes every version.
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
    """Return whether an entry shows neither when a resource has changed, nor to what content."""
    entry = change.resource
    return (
        change.change is not ChangeType.DELETED
        and entry.change is not None
        and entry.hash is None
        and entry.changed_at is None
    )


def needs_request(change: Change, lastmod: int | None) -> bool:
    """Return whether only a request can show if an entry describes the version with this lastmod.

    `lastmod` is in microseconds. An entry's `lastmod` may be older than the change (core §7),
    because a restored file keeps its own.
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
    """Return whether a change deletes the very version with this hash or lastmod (µs).

    If so, the deletion came after that version although its own datetime may be earlier: some
    Sources date a deletion with the last modification of the deleted version.
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
#: Number of resources looked up by one query.
_PART = 500

#: A function that runs a query with its parameters.
Query = Callable[[str, Sequence[object]], Iterable[Row]]


def look_up(query: Query, uris: Sequence[str]) -> dict[str, ResourceState]:
    """Return the states of known resources, keyed by their URIs as stored."""
    return {row[0]: ResourceState(*row) for row in select_in(query, _FIND, uris)}


class EquivalentLookup:
    """Finds resources by any spelling of their URIs.

    Attributes:
        has_spellings: Whether any resource is stored under a URI that is not in normal form.
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
    """Yield the rows for the given values, in parts. The query must end with `IN`."""
    for begin in range(0, len(values), _PART):
        part = values[begin : begin + _PART]
        yield from query(_with_marks(sql, len(part)), part)


@lru_cache(64)
def _with_marks(sql: str, count: int) -> str:
    return f"{sql} ({', '.join('?' * count)})"


def pages(query: Query, sql: str, limit: int = 10_000) -> Iterator[list[Row]]:
    """Yield the rows of a query in pages. Each begins after the last URI of the one before."""
    after = ""
    while rows := list(query(sql, (after, limit))):
        yield rows
        after = rows[-1][0]


def identity_of(uri: str) -> str:
    """Return a resource's identity in its stored form: empty if the URI is in normal form."""
    identity = normalize(uri)
    return "" if identity == uri else identity


def identify(database: StateDatabase) -> bool:
    """Store the identities of resources that an earlier version stored, within a transaction.

    All but one of the resources that share an identity keep their own URIs as identities. No list
    has such a URI, so the next comparison removes the resource.

    Returns:
        Whether any resources share an identity.
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
