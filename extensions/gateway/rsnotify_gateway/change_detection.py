"""Detects the changes in a batch, and records them: the entries that differ from the journal.

The validator of a resource in the journal consists of its state and the places that list it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from urllib.parse import quote

from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, InvalidDocument, without_credentials
from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.format.model import ChangeType, Resource
from rsnotify.format.uris import URI_CHARACTERS, normalize
from rsnotify_gateway.adapter import MissingEntry, OriginBatch, SeenEntry, origin_uri
from rsnotify_publisher import Record
from rsnotify_publisher.changes import check_record, check_uri
from rsnotify_publisher.journal import Journal
from rsnotify_subscriber.fetching.credentials import without_login

logger = logging.getLogger("rsnotify.gateway")
#: The names of positions in the journal: the cursor, and the instant of the last check.
_CURSOR = "origin"
_CHECKED = "checked"


def encode_validator(state: str, places: Iterable[str]) -> str:
    return f"{state}\n{' '.join(sorted(places))}"


def decode_validator(validator: str | None) -> tuple[str, frozenset[str]]:
    state, _, places = (validator or "").rpartition("\n")
    return state, frozenset(places.split())


def usable_uri(uri: str) -> str | None:
    """Return an origin's URI in normal form and without a login; None if it is invalid."""
    escaped = quote(without_login(uri), safe=URI_CHARACTERS)  # some origins do not escape URIs
    try:
        check_uri(escaped)
    except ConfigurationError:
        return None
    return normalize(escaped)


def required_uri(base: str, reference: str) -> str:
    """Resolve a reference in an origin's document to a usable URI.

    Raises:
        InvalidDocument: The reference is not a valid URI.
    """
    uri = usable_uri(origin_uri(base, reference))
    if uri is None:
        reason = f"{without_credentials(reference)[:200]!r} is not a valid URI"
        raise InvalidDocument(reason, source=base)
    return uri


def record_batch(journal: Journal, batch: OriginBatch, now: int) -> int:
    """Record a batch and its positions within a transaction. Return the number of changes.

    No change is dated before it became visible, nor before its `lastmod` unless that is later than
    `now` (µs): a client that already holds a copy with this `lastmod` would skip the change.
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
    """Return the instant (µs) through which the origin was checked; None before the first check."""
    checked = journal.position(_CHECKED)
    return None if checked is None else int(checked)


def is_before(one: Instant | None, other: Instant | None) -> bool:
    return one is not None and other is not None and one < other


def _listed(state: str) -> str:
    return state.partition(" ")[2]


class _States:
    """The state of each resource in a batch after the entries processed so far."""

    def __init__(self, journal: Journal, at: int, now: int) -> None:
        self._journal = journal
        self._at = at
        self._now = now
        #: The recorded resources with their validators; None for a resource without a record.
        self._known: dict[str, tuple[Resource, str] | None] = {}
        self.records: list[Record] = []
        #: For each record, the earliest datetime (µs) that it may have.
        self.earliest: list[int] = []
        #: The last spelling of each URI in the batch, by its normal form.
        self._spellings: dict[str, str] = {}
        #: The new validators of unchanged resources that are listed in other places than before.
        self.revalidated: dict[str, str] = {}

    def _find(self, uri: str) -> tuple[Resource, str] | None:
        if uri not in self._known:
            found = self._journal.resource(uri)
            self._known[uri] = None if found is None else (found[0], found[1] or "")
        return self._known[uri]

    def see(self, entry: SeenEntry) -> None:
        seen, uri = entry.resource, entry.resource.uri
        self._spellings[normalize(uri)] = uri
        if (known := self._find(uri)) is None:
            created = replace(seen, change=ChangeType.CREATED)
            self._record(created, encode_validator(entry.state, [entry.place]), seen.lastmod)
            return
        recorded, validator = known
        state, places = decode_validator(validator)
        if entry.is_listing and _listed(state) == _listed(entry.state):
            return
        # The same state with two lengths is a change, because one of the lengths is wrong.
        lengths = {recorded.length, seen.length} - {None}
        is_changed = state != entry.state or len(lengths) > 1
        # If two places list two versions, keep the later one; otherwise each check would record
        # both. If the origin's entries are ordered, the place does not matter.
        is_replaceable = not entry.is_ordered and places <= {entry.place}
        if is_changed and (is_replaceable or not is_before(seen.lastmod, recorded.lastmod)):
            updated = replace(seen, change=ChangeType.UPDATED)
            new = encode_validator(entry.state, places | {entry.place})
            self._record(updated, new, seen.lastmod)
        elif (new := encode_validator(state, places | {entry.place})) != validator:
            self._revalidate(recorded, new)

    def miss(self, entry: MissingEntry) -> None:
        known = self._find(entry.uri)
        if self._spellings.get(normalize(entry.uri), entry.uri) != entry.uri:
            return  # an entry with another spelling has replaced it
        if known is None or is_before(entry.at, known[0].lastmod):
            return
        recorded, validator = known
        state, places = decode_validator(validator)
        remaining = frozenset() if entry.places is None else places - entry.places
        if remaining:
            self._revalidate(recorded, encode_validator(state, remaining))
        else:
            self._record(Resource(entry.uri, change=ChangeType.DELETED), None, entry.at)

    def _record(self, change: Resource, validator: str | None, at: Instant | None) -> None:
        try:
            record = check_record(Record(change, validator))
        except ConfigurationError as error:
            logger.warning("publishing a resource without its metadata: %s", error)
            bare = Resource(change.uri, change=change.change, lastmod=change.lastmod)
            record = check_record(Record(bare, validator))
        self._known[change.uri] = None if validator is None else (change, validator)
        self.revalidated.pop(change.uri, None)
        self.records.append(record)
        stated = 0 if at is None else to_microseconds(at)
        self.earliest.append(max(self._at, min(stated, self._now)))

    def _revalidate(self, recorded: Resource, validator: str) -> None:
        self._known[recorded.uri] = recorded, validator
        self.revalidated[recorded.uri] = validator
