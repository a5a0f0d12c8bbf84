"""Records the changes in a batch: the entries that differ from the recorded state.

The validator of a resource in the journal consists of its state and the places that list it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from urllib.parse import quote

from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.format.model import ChangeType, Resource
from rsnotify.format.uris import normalize
from rsnotify_gateway.adapter import MissingEntry, OriginBatch, SeenEntry
from rsnotify_publisher import Record
from rsnotify_publisher.changes import check_record, check_uri
from rsnotify_publisher.journal import Journal
from rsnotify_subscriber.fetching.credentials import without_login

_log = logging.getLogger("rsnotify.gateway")
#: The journal's names for the cursor, and for the instant up to which the origin was checked.
_CURSOR = "origin"
_CHECKED = "checked"
#: Special characters allowed in a URI. Others are escaped, because origins make mistakes.
_URI = "%/:?#[]@!$&'()*+,;="


def encode_validator(state: str, places: Iterable[str]) -> str:
    return f"{state}\n{' '.join(sorted(places))}"


def decode_validator(validator: str | None) -> tuple[str, frozenset[str]]:
    state, _, places = (validator or "").rpartition("\n")
    return state, frozenset(places.split())


def usable_uri(uri: str) -> str | None:
    """Return an origin's URI in normal form and without a login; None if it is not a valid URI."""
    escaped = quote(without_login(uri), safe=_URI)
    try:
        check_uri(escaped)
    except ConfigurationError:
        return None
    return normalize(escaped)


def record_batch(journal: Journal, batch: OriginBatch, now: int) -> int:
    """Record a batch and its positions, and return the number of changes; within a transaction.

    No change is dated before it became visible. Nor is it dated before its `lastmod`, unless that
    is later than now (µs): a client that has already seen the `lastmod` would skip the change.
    """
    states = _States(journal, batch.at or 0, now)
    for entry in batch.entries:
        if isinstance(entry, SeenEntry):
            states.see(entry)
        else:
            states.miss(entry)
    journal.record(states.records, states.earliest)
    for uri, validator in states.revalidated.items():
        journal.revalidate(uri, validator)
    if batch.cursor is not None:
        journal.set_position(_CURSOR, batch.cursor)
    if batch.checked is not None:
        journal.set_position(_CHECKED, str(batch.checked))
    return len(states.records)


def stored_cursor(journal: Journal) -> str | None:
    return journal.position(_CURSOR)


def stored_check(journal: Journal) -> int | None:
    """Return the instant (µs) through which the origin was checked; None if it never was."""
    checked = journal.position(_CHECKED)
    return None if checked is None else int(checked)


def _listed(state: str) -> str:
    return state.partition(" ")[2]


class _States:
    """The state of each resource in a batch, after the entries processed so far."""

    def __init__(self, journal: Journal, at: int, now: int) -> None:
        self._journal = journal
        self._at = at
        self._now = now
        self._validators: dict[str, str | None] = {}
        self._modified: dict[str, Instant | None] = {}
        self._lengths: dict[str, int | None] = {}
        self.records: list[Record] = []
        #: The earliest instant (µs) at which each record may be dated.
        self.earliest: list[int] = []
        #: The last spelling of each resource's URI in the batch, by its normal form.
        self._spellings: dict[str, str] = {}
        #: The new validators of resources that did not change, but whose places did.
        self.revalidated: dict[str, str] = {}

    def _known(self, uri: str) -> str | None:
        """Return the validator of a resource; None if the resource is not recorded as present."""
        if uri not in self._validators:
            found = self._journal.resource(uri)
            self._validators[uri] = None if found is None else found[1] or ""
            self._modified[uri] = None if found is None else found[0].lastmod
            self._lengths[uri] = None if found is None else found[0].length
        return self._validators[uri]

    def see(self, entry: SeenEntry) -> None:
        uri = entry.resource.uri
        self._spellings[normalize(uri)] = uri
        known = self._known(uri)
        state, places = decode_validator(known)
        validator = encode_validator(entry.state, places | {entry.place})
        if known is not None and entry.is_listing and _listed(state) == _listed(entry.state):
            return
        if known is not None and self._is_outdated(entry, places):
            self._revalidate(uri, encode_validator(state, places | {entry.place}))
        elif known is None or state != entry.state or self._has_other_length(entry.resource):
            change = ChangeType.CREATED if known is None else ChangeType.UPDATED
            self._record(replace(entry.resource, change=change), validator, entry.resource.lastmod)
        elif validator != known:
            self._revalidate(uri, validator)

    def _has_other_length(self, resource: Resource) -> bool:
        """Return whether a different length is recorded, which means that one is wrong."""
        recorded = self._lengths[resource.uri]
        return None not in (recorded, resource.length) and recorded != resource.length

    def _is_outdated(self, entry: SeenEntry, places: frozenset[str]) -> bool:
        """Return whether a later version is recorded, and listed by another place.

        If both were recorded, the two versions would alternate. If the origin's entries are
        ordered, the place does not matter.
        """
        is_older = self._is_before(entry.resource.uri, entry.resource.lastmod)
        return is_older and (entry.is_ordered or bool(places - {entry.place}))

    def _is_before(self, uri: str, at: Instant | None) -> bool:
        modified = self._modified[uri]
        return at is not None and modified is not None and at < modified

    def miss(self, entry: MissingEntry) -> None:
        known = self._known(entry.uri)
        if self._spellings.get(normalize(entry.uri), entry.uri) != entry.uri:
            return  # an entry with another spelling has replaced it
        if known is None or self._is_before(entry.uri, entry.at):
            return
        state, places = decode_validator(known)
        remaining = frozenset() if entry.places is None else places - entry.places
        if remaining:
            self._revalidate(entry.uri, encode_validator(state, remaining))
        else:
            self._record(Resource(entry.uri, change=ChangeType.DELETED), None, entry.at)

    def _record(self, change: Resource, validator: str | None, at: Instant | None) -> None:
        try:
            record = check_record(Record(change, validator))
        except ConfigurationError as error:
            _log.warning("metadata is left out: %s", error)
            bare = Resource(change.uri, change=change.change, lastmod=change.lastmod)
            record = check_record(Record(bare, validator))
        self._validators[change.uri] = validator
        self._modified[change.uri] = change.lastmod
        self._lengths[change.uri] = change.length
        self.revalidated.pop(change.uri, None)
        self.records.append(record)
        stated = 0 if at is None else to_microseconds(at)
        self.earliest.append(max(self._at, min(stated, self._now)))

    def _revalidate(self, uri: str, validator: str) -> None:
        self._validators[uri] = validator
        self.revalidated[uri] = validator
