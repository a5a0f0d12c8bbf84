"""Coverage: the interval for which a change document or fragment contains all changes.

The interval extends from `from` (exclusive) to `until` (inclusive). Where datetimes in the document
contradict each other, the interval is corrected. A Destination compares the coverage with its
progress, a `Frontier`: the instant that it has reached, and the changes seen at exactly that
instant. If a Source dates changes in whole seconds, many have the same datetime, and a later
document may contain more of them. Changes at the frontier are therefore compared by datetime *and*
URI (core §12.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum

from msgspec import Struct, structs

from rsnotify.errors import InvalidDocument, WrongDocument
from rsnotify.format.datetimes import (
    Instant,
    dates_from_list_order,
    end_of_unit,
    is_undecided,
    just_before,
    postponed,
)
from rsnotify.format.model import FRAGMENT_CAPABILITIES, Capability, ChangeType, Document, Resource
from rsnotify.format.uris import normalize


class CheckMethod(Enum):
    """How to decide whether a change must still be applied to the copy."""

    #: By datetime: a change older than the stored version is not applied.
    DATE = "date"
    #: By comparison, because datetimes may be wrong: if the change looks old but its entry
    #: contradicts the copy, fetch the resource.
    COMPARE = "compare"
    #: By a GET, because documents contradict each other: fetch the resource, bypassing caches and
    #: without a condition, and store the response.
    FETCH = "fetch"


class Change(Struct, frozen=True, gc=False):
    """One change to one resource, with its effective datetime.

    Args:
        uri: The normalized URI, which is the same for all spellings; `resource` has the Source's
            spelling. In a change that a subscriber has applied, the URI as stored in the copy.
        at: The datetime of the change. If the entry has none, the datetime of the previous entry,
            or the beginning of the list.
        resource: The entry in the document.
        package: The URI of the dump package whose manifest had the entry, if any. The content is
            the package's member at `resource.path`.
        check: How to decide whether the change must still be applied.
        pushed: Whether a fragment, and no other document, contains the change.
    """

    uri: str
    change: ChangeType
    at: Instant
    resource: Resource
    package: str | None = None
    check: CheckMethod = CheckMethod.DATE
    pushed: bool = False

    @property
    def stated_at(self) -> Instant:
        """The datetime stated in the entry, or `at` if there is none."""
        is_change = self.resource.change is not None
        return (is_change and self.resource.changed_at) or self.at

    @property
    def dated_by_lastmod(self) -> bool:
        """Whether this is a deletion whose datetime may be that of the last modification."""
        return self.change is ChangeType.DELETED and self.resource.datetime is None


#: An instant before every change.
EARLIEST = datetime.min.replace(tzinfo=UTC)
#: Time after an instant until documents contain all changes dated with it, because documents are
#: written with a delay and clocks differ.
_WRITE_DELAY = timedelta(seconds=1)
#: Maximum error of a rounded datetime.
_ROUNDING = timedelta(seconds=1)


class Coverage(Struct, frozen=True):
    """The interval for which a document contains all changes, and these changes.

    Args:
        from_: The document contains all changes after this instant; None if unknown.
        until: The document contains all changes up to and including this instant; None if unknown.
        closed: Whether the document will not be updated any more.
        ordered: Whether the entries are in chronological order (core §12.1). If not, a late entry
            may have an early datetime, and no entry may be skipped as old.
        changes: The entries.
        sent: The `Date` of the response; None if it had none.
        contradictory: Whether the datetimes contradict each other or `sent`, so that they do not
            prove which entries are old.
    """

    from_: Instant | None
    until: Instant | None
    closed: bool
    ordered: bool
    changes: tuple[Change, ...]
    sent: Instant | None = None
    contradictory: bool = False

    @property
    def latest(self) -> Instant:
        """The latest datetime stated in an entry, even if list order has corrected the change's."""
        stated = (change.resource.changed_at or change.at for change in self.changes)
        return max(stated, default=EARLIEST)

    @property
    def running(self) -> bool:
        """Whether later changes may still be dated with the document's last instant."""
        until = self.until
        if self.closed or until is None or until.microsecond:
            return False
        if not any(change.at == until for change in self.changes):
            return False  # the list begins there, so the instant is over
        return self.sent is None or self.sent < postponed(end_of_unit(until), _WRITE_DELAY)

    def reaches(self, instant: Instant) -> bool:
        """Return whether no change between `instant` and the first entry can be missing."""
        return self.from_ is not None and self.from_ <= instant


def change_list_coverage(document: Document, sent: Instant | None = None) -> Coverage:
    """Return the coverage of a Change List.

    A list without the mandatory `from` (core §12.1) begins with its first entry. An open list ends
    with its last entry. `sent` is the `Date` of the response.

    Raises:
        WrongDocument: The document is not a Change List.
        InvalidDocument: An entry has no `change`, or its datetime cannot be determined.
    """
    if document.capability != Capability.CHANGE_LIST or document.index:
        raise WrongDocument(f"a Change List was expected, not {document.capability!r}")
    return _listed_coverage(document, sent=sent)


def package_coverage(manifest: Document, package: str) -> Coverage:
    """Return the coverage of a Change Dump package, from its manifest.

    Raises:
        WrongDocument: The document is not a Change Dump Manifest.
        InvalidDocument: See `change_list_coverage`.
    """
    if manifest.capability != Capability.CHANGE_DUMP_MANIFEST or manifest.index:
        raise WrongDocument(f"a Change Dump Manifest was expected, not {manifest.capability!r}")
    return _listed_coverage(manifest, package)


def _listed_coverage(
    document: Document, package: str | None = None, sent: Instant | None = None
) -> Coverage:
    changes, ordered = _changes(document, package)
    in_order = ordered
    if not ordered:
        times = dates_from_list_order([change.at for change in changes], sent)
        if times is not None:
            changes, ordered = tuple(map(_dated, changes, times)), True
    from_, stated = document.from_, document.until
    if stated is not None and is_ahead(stated, sent):
        stated = None  # the list cannot be complete up to the future, so it counts as open
    contradictory = not in_order or stated is not document.until or _is_outside(document, changes)
    if from_ is None and changes:
        # The `lastmod` of a deletion may be that of the resource, before the list began.
        certain = [change.at for change in changes if not change.dated_by_lastmod]
        from_ = min(certain or [change.at for change in changes])
        ordered = ordered and len(certain) == len(changes)
    elif from_ is not None and changes and ordered:
        from_ = _corrected_from(from_, changes[0].at, sent)
    if contradictory and from_ is not None:
        begin = from_
        changes = tuple(_dated(change, max(change.at, begin)) for change in changes)
    if contradictory and stated is not None:
        # Otherwise a datetime after the end of the list would hide the changes of the next list.
        end = max(stated, from_ or stated)
        changes = tuple(_dated(change, min(change.at, end)) for change in changes)
    ends = (stated, *(change.at for change in changes), from_)
    until = max((end for end in ends if end is not None), default=None)
    return Coverage(from_, until, stated is not None, ordered, changes, sent, contradictory)


def is_ahead(instant: Instant, sent: Instant | None) -> bool:
    """Return whether an instant in a document is later than the `Date` of the response."""
    return sent is not None and instant > postponed(sent, _ROUNDING)


def _is_outside(document: Document, changes: Sequence[Change]) -> bool:
    """Return whether an entry lies outside the interval of its list by more than rounding."""
    from_, until = document.from_, document.until
    return any(
        (from_ is not None and postponed(change.at, _ROUNDING) < from_)
        or (until is not None and change.at > until)
        for change in changes
    )


def _corrected_from(from_: Instant, first: Instant, sent: Instant | None) -> Instant:
    """Return the instant from which a list is complete, which may be before its `from`.

    `from` may be rounded up, or from a clock that was set back since. But an entry may also have an
    older date, such as the last modification of a resource that was added later.
    """
    is_ahead = sent is not None and sent < from_
    return min(from_, first) if is_ahead or from_ - first < _ROUNDING else from_


def _dated(change: Change, at: Instant) -> Change:
    return change if change.at == at else structs.replace(change, at=at)


def fragment_coverage(document: Document, *, allow_framework: bool = False) -> Coverage:
    """Return the coverage of a fragment (Change Notification).

    With `allow_framework`, also accept a Framework Notification, which has changes of documents.

    Raises:
        WrongDocument: The document is not a fragment.
        InvalidDocument: Entries are out of order or outside the interval, `until` is before
            `from`, or an entry has no `change` or datetime.
    """
    is_framework = document.capability == Capability.FRAMEWORK_NOTIFICATION
    is_fragment = document.capability in (*FRAGMENT_CAPABILITIES, None)
    if document.index or not (is_fragment or (is_framework and allow_framework)):
        raise WrongDocument(f"a Change Notification was expected, not {document.capability!r}")
    from_, until = document.from_, document.until
    if from_ is not None and until is not None and until < from_:
        raise InvalidDocument(f"its until, {until}, is before its from, {from_}")
    changes, ordered = _changes(document, pushed=True)
    if not ordered:
        raise InvalidDocument("its entries are not in chronological order (core §12.1)")
    if changes:
        if from_ is not None and changes[0].at < from_:
            raise InvalidDocument(f"an entry of {changes[0].at} is before its from, {from_}")
        if until is not None and changes[-1].at > until:
            raise InvalidDocument(f"an entry of {changes[-1].at} is after its until, {until}")
        until = until or changes[-1].at
    return Coverage(from_, until, True, ordered, changes)


def _changes(
    document: Document, package: str | None = None, *, pushed: bool = False
) -> tuple[tuple[Change, ...], bool]:
    changes: list[Change] = []
    before = document.from_
    for number, resource in enumerate(document.resources, 1):
        if resource.change is None:
            raise InvalidDocument("it has no change attribute (core §12.1)", entry=number)
        at = resource.changed_at or before
        if at is None:
            raise InvalidDocument("its change has no datetime", entry=number)
        uri = normalize(resource.uri)
        changes.append(Change(uri, resource.change, at, resource, package, pushed=pushed))
        before = at
    # A Source may round `from` up past its first entry, so only entries are compared.
    dated = _dated_within_units(changes, document.from_)
    return (tuple(changes), False) if dated is None else (dated, True)


def _dated_within_units(
    changes: Sequence[Change], from_: Instant | None
) -> tuple[Change, ...] | None:
    """Return the changes in order, if only coarse datetimes, such as dates, are out of order.

    Otherwise, return None. A change is dated no earlier than the previous one (core §12.1), and not
    before the list begins.
    """
    dated: list[Change] = []
    for change in changes:
        at, before = change.at, dated[-1].at if dated else None
        if before is not None and at < before:
            if not is_undecided(at, before):
                return None
            at = before
        if from_ is not None and at < from_ and change.at.fold and is_undecided(change.at, from_):
            at = from_
        dated.append(_dated(change, at))
    return tuple(dated)


#: Identifies a change among the changes of one instant.
ChangeKey = tuple[str, str, str]


def change_key(change: Change) -> ChangeKey:
    """Return what distinguishes a change from others with the same datetime (core §12.1)."""
    return (change.uri, change.change.value, change.resource.hash or "")


class Frontier(Struct):
    """The instant up to which all changes are known, and the changes seen at that instant.

    Args:
        instant: The instant.
        seen: The changes seen at the instant. A document may list a change more than once.
        over: Whether no more changes can be dated with the instant. With datetimes in whole
            seconds, the second of an open list's last entry may not be over.
        running: Whether that second may not have been over when the last document was read, so that
            more changes may have been dated with it since.
    """

    instant: Instant
    seen: Counter[ChangeKey]
    over: bool = True
    running: bool = False

    @classmethod
    def at(
        cls, instant: Instant, seen: Iterable[ChangeKey] = (), *, running: bool = False
    ) -> Frontier:
        """Return a frontier at an instant, which is over unless changes were seen at it."""
        counts = Counter(seen)
        return cls(instant, counts, over=not counts, running=running)

    @property
    def joint(self) -> Instant:
        """The latest instant at which a document may begin without leaving a gap.

        If the frontier's instant is not over, a document that begins at it would lack changes dated
        with it later.
        """
        over = self.over or self.instant.microsecond
        return self.instant if over else just_before(self.instant)

    def fresh(self, coverage: Coverage) -> list[Change]:
        """Return the changes after the frontier, and unseen changes at it.

        If the document is out of order, return all changes, because none is certainly old.
        """
        if not coverage.ordered:
            return list(coverage.changes)
        seen: Counter[ChangeKey] | None = None
        fresh = []
        for change in coverage.changes:
            if change.at > self.instant:
                fresh.append(change)
            elif change.at == self.instant:
                seen = self.seen.copy() if seen is None else seen
                if seen[change_key(change)]:
                    seen[change_key(change)] -= 1
                else:
                    fresh.append(change)
        return fresh

    def undecided(self, coverage: Coverage) -> list[Change]:
        """Return the changes before the frontier that may be after it, with coarse datetimes."""
        at = self.instant
        return [
            change
            for change in coverage.changes
            if change.at < at and change.stated_at.fold and is_undecided(change.stated_at, at)
        ]

    def learn(self, coverage: Coverage) -> list[Change]:
        """Advance to the end of a document without a gap, and return its `fresh` changes."""
        fresh = self.fresh(coverage)
        if coverage.until is not None:
            running, over = coverage.running, coverage.closed
            self.advance(coverage.until, coverage.changes, over=over, running=running)
        return fresh

    def advance(
        self,
        until: Instant,
        changes: Sequence[Change] = (),
        *,
        over: bool = True,
        running: bool = False,
    ) -> None:
        """Advance to `until`, unless it is earlier.

        The given changes that are dated exactly `until` count as seen.
        """
        if until < self.instant:
            return
        at_it = Counter(change_key(change) for change in changes if change.at == until)
        later = until > self.instant
        self.seen = at_it if later else self.seen | at_it
        self.over = over or (self.over and not later)
        self.running = running and (later or self.running)
        self.instant = until
