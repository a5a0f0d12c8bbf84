"""Coverage: which interval of time a change document proves, and what of it is new.

A document about change covers an interval, `from` (exclusive) to `until` (inclusive). A
Destination's progress is a `Frontier`: an instant through which it knows all changes, and
what it has seen *at* that instant, because Sources of second granularity give several
changes one datetime, and a later look may find more of them (core §12.1: compare the
datetime *and* the URI).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum

from msgspec import Struct, structs

from rsnotify.errors import InvalidDocument, WrongDocument
from rsnotify.format.datetimes import MICROSECOND, Instant
from rsnotify.format.model import Document, Resource
from rsnotify.format.timestamp_precision import dates_from_list_order, end_of_unit, postponed
from rsnotify.format.vocabulary import FRAGMENT_CAPABILITIES, Capability, ChangeType


class CheckMethod(Enum):
    """How to decide whether a change still has to be applied to what is held."""

    #: The datetimes decide: what is held as of a later change is left alone.
    DATE = "date"
    #: The datetimes may be wrong. If they say that the change is old, compare the entry with what
    #: is held, and fetch the resource where the two contradict each other.
    COMPARE = "compare"
    #: Two facts contradict each other: fetch the resource itself, past caches and without a
    #: condition, and keep what it is now.
    FETCH = "fetch"


class Change(Struct, frozen=True, gc=False):
    """One change to one resource, with the datetime it counts for.

    Args:
        at: The change's own datetime, or where the Source gives none, that of the entry
            before it (list order decides) or the beginning of the list.
        resource: The entry as it stood in the document.
        package: The URI of the dump package whose manifest had the entry, if it was one; the
            content is its member at `resource.path`.
        check: How to decide whether the change still has to be applied.
    """

    uri: str
    change: ChangeType
    at: Instant
    resource: Resource
    package: str | None = None
    check: CheckMethod = CheckMethod.DATE

    @property
    def dated_by_lastmod(self) -> bool:
        """Whether it is a deletion whose instant may be that of the last modification before."""
        return self.change is ChangeType.DELETED and self.resource.datetime is None


#: Before every change.
EARLIEST = datetime.min.replace(tzinfo=UTC)
#: A document that is sent so much later than an instant has all of it, though it may be written a
#: little late, and clocks differ a little.
_WRITING = timedelta(seconds=1)
#: So much later than it is, a time may be told that is rounded up.
_ROUNDED = timedelta(seconds=1)

#: What tells two changes of one instant apart.
ChangeKey = tuple[str, str, str]


def change_key(change: Change) -> ChangeKey:
    """Return what identifies a change among those of the same datetime (core §12.1)."""
    return (change.uri, change.change.value, change.resource.hash or "")


class Coverage(Struct, frozen=True):
    """What one change document proves.

    Args:
        from_: It holds all changes after this instant; None if it does not prove even that.
        until: ... up to and including this one; None if it proves nothing.
        closed: It says that it will not be updated any more.
        ordered: Its entries stand in chronological order, as core §12.1 demands. If not, a
            late entry may carry an early datetime, and no entry may be passed over as old.
        changes: Its entries.
        sent: When it was sent, by the clock of the Source; None if the answer had no `Date`.
        contradictory: Its datetimes contradict each other or the time at which it was sent, so
            that they do not prove which of its entries are old.
    """

    from_: Instant | None
    until: Instant | None
    closed: bool
    ordered: bool
    changes: tuple[Change, ...]
    sent: Instant | None = None
    contradictory: bool = False

    @property
    def ends(self) -> Instant | None:
        """The latest that it tells of; None if it tells of nothing."""
        in_order = self.ordered and not self.contradictory
        at_last = self.changes and in_order and not self.closed
        return self.changes[-1].at if at_last else self.until

    @property
    def latest(self) -> Instant:
        """The latest datetime in it, of which list order may have made an earlier one."""
        told = (change.resource.changed_at or change.at for change in self.changes)
        return max(told, default=EARLIEST)

    @property
    def running(self) -> bool:
        """Whether more may have come of the instant of its last entry after it was sent."""
        until = self.until
        if self.closed or until is None or until.microsecond:
            return False
        if not any(change.at == until for change in self.changes):
            return False  # the list begins there, and says that it is over
        return self.sent is None or self.sent < postponed(end_of_unit(until), _WRITING)

    def reaches(self, instant: Instant) -> bool:
        """Tell whether nothing between `instant` and the first entry can be missing."""
        return self.from_ is not None and self.from_ <= instant


def change_list_coverage(document: Document, sent: Instant | None = None) -> Coverage:
    """Read a Change List as coverage.

    A list without the mandatory `from` (core §12.1) is taken to begin with its first entry.
    An open list proves nothing beyond its last entry.

    Args:
        document: The Change List.
        sent: When it was sent, by the clock of the Source; None if that is not told.

    Raises:
        WrongDocument: It is not a Change List.
        InvalidDocument: An entry has no `change`, or nothing tells when it happened.
    """
    if document.capability != Capability.CHANGE_LIST or document.index:
        raise WrongDocument(f"a Change List was expected, not {document.capability!r}")
    return _listed_coverage(document, sent=sent)


def package_coverage(manifest: Document, package: str) -> Coverage:
    """Read the manifest of a Change Dump's package as coverage, like a Change List.

    Args:
        manifest: The Change Dump Manifest.
        package: The URI of the package that holds it.

    Raises:
        WrongDocument: It is not a Change Dump Manifest.
        InvalidDocument: As `change_list_coverage`.
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
        changes, ordered = _by_place(changes, sent)
    latest = max((change.at for change in changes), default=None)
    from_ = document.from_
    stated = _stated_until(document, sent)
    contradictory = not in_order or stated is not document.until or _is_outside(document, changes)
    if from_ is None and changes:
        # Where even `from` is missing, a deletion may bear the lastmod of what was deleted.
        certain = [change.at for change in changes if not change.dated_by_lastmod]
        from_ = min(certain or [change.at for change in changes])
        ordered = ordered and len(certain) == len(changes)
    elif from_ is not None and changes and ordered:
        from_ = _begins(from_, changes[0].at, sent)
    if contradictory and from_ is not None:
        begins = from_
        changes = tuple(_dated(change, max(change.at, begins)) for change in changes)
    until = max((t for t in (stated, latest, from_) if t is not None), default=None)
    return Coverage(from_, until, stated is not None, ordered, changes, sent, contradictory)


def _stated_until(document: Document, sent: Instant | None) -> Instant | None:
    """Return the `until` of a list, unless it is later than the answer that carried the list.

    Such a list cannot have all changes up to its `until`: it is read like an open one.
    """
    until = document.until
    return None if until is not None and is_ahead(until, sent) else until


def is_ahead(instant: Instant, sent: Instant | None) -> bool:
    """Return whether a document states an instant that is later than the document itself.

    Args:
        instant: Its `at` or `until`.
        sent: The `Date` of the answer, which has whole seconds; None if there is none.
    """
    return sent is not None and instant > postponed(sent, _ROUNDED)


def _is_outside(document: Document, changes: Sequence[Change]) -> bool:
    """Return whether an entry lies outside the interval of its list, beyond rounding."""
    from_, until = document.from_, document.until
    return any(
        (from_ is not None and postponed(change.at, _ROUNDED) < from_)
        or (until is not None and change.at > until)
        for change in changes
    )


def _begins(from_: Instant, first: Instant, sent: Instant | None) -> Instant:
    """Return since when a list tells all, of which the first entry may lie before its `from`.

    It may be rounded up, or of a clock that was set since. But an entry may also have the date of
    something older, as the last modification of what was added later.
    """
    is_ahead = sent is not None and sent < from_
    return min(from_, first) if is_ahead or from_ - first < _ROUNDED else from_


def _by_place(changes: tuple[Change, ...], sent: Instant | None) -> tuple[tuple[Change, ...], bool]:
    """Date changes that are out of order by their place, where that tells something."""
    times = dates_from_list_order([change.at for change in changes], sent)
    if times is None:
        return changes, False
    return tuple(map(_dated, changes, times)), True


def _dated(change: Change, at: Instant) -> Change:
    return change if change.at == at else structs.replace(change, at=at)


def fragment_coverage(document: Document) -> Coverage:
    """Read a fragment (Change Notification) as coverage.

    Raises:
        WrongDocument: It is not a fragment.
        InvalidDocument: Its entries are out of order or outside its interval, its interval
            is none, or an entry has no `change` or datetime.
    """
    if document.index or document.capability not in (*FRAGMENT_CAPABILITIES, None):
        raise WrongDocument(f"a Change Notification was expected, not {document.capability!r}")
    return _pushed_coverage(document)


def notification_coverage(document: Document) -> Coverage:
    """Read any notification as coverage; the changes of a Framework Notification are of documents.

    Raises:
        DocumentError: As `fragment_coverage`.
    """
    if document.capability == Capability.FRAMEWORK_NOTIFICATION and not document.index:
        return _pushed_coverage(document)
    return fragment_coverage(document)


def _pushed_coverage(document: Document) -> Coverage:
    from_, until = document.from_, document.until
    if from_ is not None and until is not None and until < from_:
        raise InvalidDocument(f"its until, {until}, lies before its from, {from_}")
    changes, ordered = _changes(document)
    if not ordered:
        raise InvalidDocument("its entries are not in chronological order (core §12.1)")
    if changes:
        if from_ is not None and changes[0].at < from_:
            raise InvalidDocument(f"an entry of {changes[0].at} lies before its from, {from_}")
        if until is not None and changes[-1].at > until:
            raise InvalidDocument(f"an entry of {changes[-1].at} lies after its until, {until}")
        until = until or changes[-1].at
    return Coverage(from_, until, True, ordered, changes)


def _changes(document: Document, package: str | None = None) -> tuple[tuple[Change, ...], bool]:
    changes: list[Change] = []
    ordered = True
    before = document.from_
    for number, resource in enumerate(document.resources, 1):
        if resource.change is None:
            raise InvalidDocument("it does not say what changed (core §12.1)", entry=number)
        at = resource.changed_at or before
        if at is None:
            raise InvalidDocument("nothing tells when the change happened", entry=number)
        # A Source may round `from` up past its first entry; only entries order each other.
        ordered = ordered and not (changes and at < changes[-1].at)
        changes.append(Change(resource.uri, resource.change, at, resource, package))
        before = at
    return tuple(changes), ordered


class Frontier(Struct):
    """The instant through which all changes are known, and what was seen at it.

    Args:
        over: Whether no more changes can come of the very instant. Where datetimes are in
            whole seconds, the second of an open list's last entry may still be running.
        running: Whether, as far as is known, it was running when it was read last, so that more
            may have come of it since.
    """

    instant: Instant
    seen: Counter[ChangeKey]
    over: bool = True
    running: bool = False

    @classmethod
    def at(
        cls, instant: Instant, seen: Iterable[ChangeKey] = (), *, running: bool = False
    ) -> Frontier:
        """Make a frontier."""
        seen = Counter(seen)
        return cls(instant, seen, over=not seen, running=running)

    @property
    def joint(self) -> Instant:
        """Where a document has to begin so that surely nothing is missing.

        One that begins at the instant itself leaves out what came of it later.
        """
        over = self.over or self.instant.microsecond
        return self.instant if over else self.instant - MICROSECOND

    def fresh(self, coverage: Coverage) -> list[Change]:
        """Return the changes beyond the frontier, or at it and not yet seen.

        Of a document out of order every entry is returned: none is proved to be old.
        """
        if not coverage.ordered:
            return list(coverage.changes)
        seen = self.seen.copy()
        fresh = []
        for change in coverage.changes:
            if change.at > self.instant:
                fresh.append(change)
            elif change.at == self.instant:
                if seen[change_key(change)]:
                    seen[change_key(change)] -= 1
                else:
                    fresh.append(change)
        return fresh

    def learn(self, coverage: Coverage) -> None:
        """Move on to where a document ends that joins, if that is later."""
        if coverage.until is not None:
            running, over = coverage.running, coverage.closed
            self.advance(coverage.until, coverage.changes, over=over, running=running)

    def advance(
        self,
        until: Instant,
        changes: Sequence[Change] = (),
        *,
        over: bool = True,
        running: bool = False,
    ) -> None:
        """Move on to `until`, if that is later; the frontier never moves back.

        Args:
            until: The instant.
            changes: What is known by it; what of them is of this very instant counts as seen.
            over: Whether no more changes can come of it.
            running: Whether more may have come of it since this was told.
        """
        if until < self.instant:
            return
        at_it = Counter(change_key(change) for change in changes if change.at == until)
        later = until > self.instant
        self.seen = at_it if later else self.seen | at_it
        self.over = over or (self.over and not later)
        self.running = running and (later or self.running)
        self.instant = until
