"""Detects changes to a Source's lists that datetimes do not reveal. There are three kinds.

**The part of an open list that was read before has changed** (`ListFingerprint`). A transaction
that commits late, a Source restored from a backup or a second writer can insert an entry there. Its
datetime is then before T, so nothing else reveals it. A fingerprint of that part is stored with the
progress.

**The clock of the Source has gone back** (`ClockRegressionDetector`), and its lists lack changes
that they had. The Source may have been restored from a backup, its clock may have been ahead, or
one entry may have had a wrong date. Later changes are then dated before `confirmed`, and would be
skipped as old, perhaps for years. But such a list may also be an old copy from a replica or a
cache. Therefore:

- A list that lacks entries, but does not end before the previous lists, is not an old copy.
  Everything is compared at once.
- All entries of a list that ends before `confirmed` count as new if the list begins later, or has
  more entries, than the last list that did not. Each entry costs a look-up if its change was
  already applied, and a request if neither a hash nor a fraction of a second shows that.
- If further lists end before `confirmed`, the clock has gone back. This is certain at once if the
  list itself shows it, or if it is the first list of a run and was sent before that instant.
  Otherwise it is certain after `Pace.stale` seconds, because by then a new copy would have replaced
  an old one.

The stored datetimes then no longer prove anything, and everything is compared.

**A closed list or package has gained entries** since a Destination passed it (`ClosedLists`), from
a transaction that committed late, or because an entry was added before the list was closed. Its
index, archive or dump then states a different hash, length or `lastmod`. A checksum of these is
stored with the progress. A list that was closed since the last pull is read once more. Reading an
archive costs a request that is not needed otherwise, so it is read only by the first pull of each
run, and by pulls after a rotation or a comparison with the whole set. An index is read anyway. Some
Sources give all lists a new `lastmod` each time, so lists are reread only a few times until the
next such occasion.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from datetime import timedelta
from zlib import crc32

from msgspec import Struct

from rsnotify.format.coverage import EARLIEST, Change, Coverage, Frontier
from rsnotify.format.datetimes import Instant, postponed, to_microseconds
from rsnotify.format.model import Resource
from rsnotify.sync.pace import Pace

#: The array types for checksums, and for microseconds since 1970.
_CHECKSUM, _MOMENT = "I", "q"
#: For a chronological list with more resources than this, only the number and sum of checksums are
#: kept.
_FEW = 300


class ListFingerprint(Struct, frozen=True, omit_defaults=True):
    """A fingerprint of the entries of one list before an instant, regardless of their order.

    Args:
        uri: The URI of the list.
        from_: The `from` of the list.
        before: The instant up to which this list and earlier ones contain every change. Entries
            with exactly this datetime do not count, because more of them may follow.
        count: The number of entries before that instant.
        sum: The sum of the checksums of these entries.
        size: The number of all entries.
        whole: The sum of the checksums of all entries.
        uris: The number of resources with entries.
        names: The sum of the checksums of their URIs.
        resources: The checksums of their URIs, if they are few or the list is not in chronological
            order.
        latest: When each of these resources changed last.
        is_superseded: Whether the next list must be compared with the copy completely. This is so
            if not all entries are applied, or if the copy was compared since with a Resource List,
            whose `at` may be wrong.
    """

    uri: str
    from_: Instant
    before: Instant
    count: int = 0
    sum: int = 0
    size: int = 0
    whole: int = 0
    uris: int = 0
    names: int = 0
    resources: bytes = b""
    latest: bytes = b""
    is_superseded: bool = False

    def is_extended_by(self, later: ListFingerprint, coverage: Coverage) -> bool:
        """Return whether a list still has the entries that it had when it was last read."""
        if self.is_superseded or (self.uri, self.from_) != (later.uri, later.from_):
            return False
        if self.before == later.before:
            return (self.count, self.sum) == (later.count, later.sum)
        return (self.count, self.sum) == _sum(coverage, self.before)

    def has_lost(self, later: ListFingerprint, coverage: Coverage) -> bool:
        """Return whether a list lacks entries that it had when it was last read.

        Entries may have been inserted, or replaced by later entries of the same resource. In such a
        list, only a resource without any entry shows that an entry is missing.
        """
        if self.is_missed_by(coverage):
            return True
        if self.uri != later.uri:
            return False
        if self.from_ != later.from_:
            return later.from_ < self.from_  # a period that was closed is open again
        if later.uris < self.uris or (later.uris == self.uris and later.names != self.names):
            return True
        if self.is_appended_to(coverage):
            return False
        if self.resources:
            return not _latest(coverage).keys() >= set(array(_CHECKSUM, self.resources))
        return not coverage.ordered or _sum(coverage, self.before)[0] < self.count

    def is_missed_by(self, coverage: Coverage) -> bool:
        """Return whether a list lacks changes of this list that are in the intervals of both.

        Entries outside the interval of their own list have wrong datetimes.
        """
        if not self.latest:
            return False
        assert coverage.from_ is not None
        assert coverage.until is not None
        after = to_microseconds(max(coverage.from_, self.from_))
        until = to_microseconds(min(coverage.until, self.before))
        now = _latest(coverage)
        had = zip(array(_CHECKSUM, self.resources), array(_MOMENT, self.latest), strict=True)
        return any(after < at <= until and now.get(name, after) < at for name, at in had)

    def is_appended_to(self, coverage: Coverage) -> bool:
        """Return whether a list begins with all entries of this list."""
        return self.whole == sum(map(_checksum, coverage.changes[: self.size]))

    def has_all_of(self, coverage: Coverage) -> bool:
        """Return whether a list, perhaps at another URI, has only entries that this list had."""
        is_whole = self.from_ == coverage.from_ and self.size == len(coverage.changes)
        return is_whole and not self.is_superseded and self.is_appended_to(coverage)

    def is_same_as(self, later: ListFingerprint) -> bool:
        """Return whether a list has exactly the same entries as this one."""
        return (self.uri, self.from_, self.whole) == (later.uri, later.from_, later.whole)


def prefix_of(uri: str, coverage: Coverage, confirmed: Instant) -> ListFingerprint:
    """Return the fingerprint of a list. Earlier lists had all changes up to `confirmed`."""
    assert coverage.from_ is not None
    assert coverage.until is not None
    before = max(coverage.until, confirmed)
    latest = _latest(coverage)
    names = sorted(latest)
    count, total = _sum(coverage, before)
    later = sum(_checksum(change) for change in coverage.changes if change.at >= before)
    is_kept = len(names) <= _FEW or not coverage.ordered
    return ListFingerprint(
        uri,
        coverage.from_,
        before,
        count,
        total,
        len(coverage.changes),
        total + later,
        len(names),
        sum(names),
        array(_CHECKSUM, names).tobytes() if is_kept else b"",
        array(_MOMENT, map(latest.__getitem__, names)).tobytes() if is_kept else b"",
    )


def _sum(coverage: Coverage, before: Instant) -> tuple[int, int]:
    checksums = [_checksum(change) for change in coverage.changes if change.at < before]
    return len(checksums), sum(checksums)


def _latest(coverage: Coverage) -> dict[int, int]:
    """Return the time of each resource's last change, by the checksum of its URI."""
    latest: dict[int, int] = {}
    for change in coverage.changes:
        name, at = crc32(change.uri.encode()), to_microseconds(change.at)
        latest[name] = max(at, latest.get(name, at))
    return latest


def _checksum(change: Change) -> int:
    return crc32(f"{change.uri} {change.change} {change.resource.hash}".encode())


#: The longest wait between two comparisons of everything, as a multiple of the first one.
_LONGEST_WAIT = 64
#: Maximum difference between the clocks of two servers of one Source.
_SKEW = timedelta(minutes=1)


class _ListSummary(Struct, frozen=True):
    """The properties that distinguish versions of a list, and where this version ended."""

    from_: Instant | None
    size: int
    last: Change | None
    ends: Instant
    is_behind: bool


class ClockRegressionDetector:
    """Detects in the lists of a Source's latest changes that its clock has gone back."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._last_read: _ListSummary | None = None
        self._last_complete: _ListSummary | None = None
        self._is_proven = self._has_lost = False
        self._older_since: float | None = None
        self._behind_since: float | None = None
        self._lost_since: Instant | None = None
        self._next = 0.0
        self._wait = pace.repair
        self._begins: Instant | None = None
        #: Where the last list that was read ends.
        self.ends: Instant | None = None

    def check_open(
        self, coverage: Coverage, frontier: Frontier, now: float, *, has_lost: bool = False
    ) -> bool:
        """Check an open list before its use. Return whether none of its entries may count as old.

        `has_lost` means that the list lacks entries that it had.
        """
        ends = coverage.ends
        assert ends is not None
        is_behind = ends < frontier.instant
        last = coverage.changes[-1] if coverage.changes else None
        before = self._last_read
        read = _ListSummary(coverage.from_, len(coverage.changes), last, ends, is_behind)
        self._last_read, self._begins, self.ends = read, coverage.from_, ends
        if not (is_behind and frontier.seen):
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = now
        if not is_behind:
            self._last_complete = read
            self._older_since = None
            self._is_proven = False
        if self._behind_since is None and (has_lost or _lacks_seen(coverage, frontier)):
            self._record_loss(coverage)  # the next list may not show the loss again
            return True
        return is_behind and self._judge(coverage, frontier, before, read, now)

    def check_closed(self, coverage: Coverage, frontier: Frontier, *, has_lost: bool) -> None:
        """Check whether a closed list or package, before its use, lacks changes that are known.

        `has_lost` means that it lacks entries that it had while it was open.
        """
        assert coverage.until is not None
        if coverage.until >= frontier.instant and (has_lost or _lacks_seen(coverage, frontier)):
            self._record_loss(coverage)

    def _record_loss(self, coverage: Coverage) -> None:
        self._has_lost = True
        since = coverage.from_ or EARLIEST
        self._lost_since = since if self._lost_since is None else min(self._lost_since, since)

    def _judge(
        self,
        coverage: Coverage,
        frontier: Frontier,
        before: _ListSummary | None,
        read: _ListSummary,
        now: float,
    ) -> bool:
        """Return whether the entries of a list that ends before `confirmed` count as new."""
        was_listed = bool(frontier.seen)  # else a Resource List may be later than the Change List
        shows_itself = coverage.latest >= frontier.instant
        sent = coverage.sent
        is_back = sent is None or postponed(sent, _SKEW) < frontier.instant
        is_first = was_listed and before is None and is_back
        self._is_proven = self._is_proven or shows_itself or is_first
        is_new = before != read
        goes_on = before is not None and (
            (before.is_behind and is_new) or (coverage.from_ or EARLIEST) > before.ends
        )
        if not is_back:
            self._older_since = None  # the Source is quiet, and a later Resource List was confirmed
        elif goes_on and self._older_since is None:
            self._older_since = now
        is_suspect = was_listed or shows_itself or self._older_since is not None
        return is_new and self._may_be_newer(coverage) and is_suspect

    def _may_be_newer(self, coverage: Coverage) -> bool:
        """Return whether a list may have changes that no complete list had, unlike an old copy."""
        begins, complete = coverage.from_ or EARLIEST, self._last_complete
        if complete is None:
            return True
        return (begins, len(coverage.changes)) > (complete.from_ or EARLIEST, complete.size)

    @property
    def begins(self) -> Instant:
        """The beginning of the lists that count after the clock has gone back."""
        known = (self._begins, self._lost_since, self.ends)
        return min(instant for instant in known if instant is not None)

    @property
    def is_behind(self) -> bool:
        """Whether the last list that was read lacks changes that were listed earlier."""
        return self._has_lost or self._behind_since is not None

    def has_gone_back(self, now: float) -> bool:
        """Return whether the Source's clock has gone back and everything may be compared now."""
        if now < self._next or self.ends is None:
            return False
        if self._is_proven or self._has_lost:
            return True
        # By then, a new copy would have replaced an old one.
        since = (self._older_since, self._behind_since)
        return any(start is not None and now - start >= self._pace.stale for start in since)

    def reset(self, now: float) -> None:
        """Forget all lists, because everything is about to be compared."""
        self._next = now + self._wait
        self._wait = min(2 * self._wait, _LONGEST_WAIT * self._pace.repair)
        self._last_read = self._last_complete = None
        self._older_since = self._behind_since = self._lost_since = None
        self._is_proven = self._has_lost = False


def _lacks_seen(coverage: Coverage, frontier: Frontier) -> bool:
    """Return whether a list that covers the frontier's instant lacks the changes seen there.

    A later change of the same resource may have replaced the earlier one.
    """
    at, begins = frontier.instant, coverage.from_
    if not frontier.seen or not coverage.ordered or begins is None or begins >= at:
        return False
    seen = {uri for uri, _, _ in frontier.seen}
    return not any(change.uri in seen for change in coverage.changes if change.at >= at)


#: The array type for checksums.
_CONTENT_CHECKSUM = "I"
#: Maximum number of lists to remember. The oldest are forgotten first.
_MOST = 10_000
#: Maximum number of pulls that read closed lists again between two occasions.
_REREADS = 3


class KnownLists(Struct, frozen=True, omit_defaults=True):
    """The stored information about closed lists.

    Args:
        through: The instant up to which closed lists are known; None before the first pull.
        checksums: For each list, a checksum of its interval, and one of the announced properties of
            its content.
    """

    through: Instant | None = None
    checksums: bytes = b""


class ClosedLists:
    """The closed lists of one Source. The next run begins with those in `known`."""

    def __init__(self, known: KnownLists) -> None:
        self.known = known
        stored = array(_CONTENT_CHECKSUM, known.checksums)
        self._checksums = dict(zip(stored[::2], stored[1::2], strict=True))
        self._left = _REREADS
        #: Whether the archive has to be read.
        self.is_archive_due = True

    def begin_period(self) -> None:
        """Allow another read of the archive and of closed lists that have changed."""
        self.is_archive_due = True
        self._left = _REREADS

    def changed(self, members: Iterable[Resource]) -> list[Resource]:
        """Return the closed lists among the entries of an index that have to be reread."""
        members = list(members)
        misdated = self._misdated(members)
        return [
            one
            for one in members
            if (self._left and self._has_changed(one)) or (misdated and _name(one) in misdated)
        ]

    def _misdated(self, members: list[Resource]) -> set[int]:
        """Return the names of unknown lists whose dates come from a clock that was set back.

        Their dates make them look old, so each is read once. They are recognized because the lists
        are out of order, or because a list ends before it begins.
        """
        if self.known.through is None:
            return set()
        ends = [one.until for one in members if one.until is not None]
        is_sorted = ends in (sorted(ends), sorted(ends, reverse=True))
        suspects = (
            one
            for one in members
            if one.until is not None
            and (not is_sorted or (one.from_ is not None and one.from_ > one.until))
        )
        return set(map(_name, suspects)) - self._checksums.keys()

    def _has_changed(self, member: Resource) -> bool:
        through, until = self.known.through, member.until
        if until is None or through is None:
            return False
        known = self._checksums.get(_name(member))
        return until > through if known is None else known != _content(member)

    def record(
        self,
        members: Iterable[Resource],
        begins: Instant | None,
        *,
        has_reread: bool,
        has_skipped: bool,
    ) -> None:
        """Record the entries of closed lists as known, at the end of a pull.

        `begins` is where the open list begins. Lists closed before that instant are known, unless
        one was closed while others were being reread (`has_skipped`).
        """
        self.is_archive_due = has_skipped
        if has_skipped:
            begins = None
        if has_reread:
            self._left -= 1
        elif not self._left:
            members = [one for one in members if not self._has_changed(one)]
        closed = [(one, one.until) for one in members if one.until is not None]
        through = [self.known.through, begins, *(until for _, until in closed)]
        for member, _ in closed:
            name = _name(member)
            if self._checksums.get(name) != _content(member):
                self._checksums.pop(name, None)
                self._checksums[name] = _content(member)
        self._store(max((one for one in through if one is not None), default=None))

    def cover(self, at: Instant) -> None:
        """Record that the whole set as of an instant was compared."""
        self._store(max(at, self.known.through or at))
        self.begin_period()

    def _store(self, through: Instant | None) -> None:
        while len(self._checksums) > _MOST:
            del self._checksums[next(iter(self._checksums))]
        pairs = [number for pair in self._checksums.items() for number in pair]
        now = KnownLists(through, array(_CONTENT_CHECKSUM, pairs).tobytes())
        if now != self.known:
            self.known = now

    def reset(self) -> None:
        """Forget everything, because the Source's clock has gone back."""
        self.known = KnownLists()
        self._checksums.clear()
        self.begin_period()


def _name(member: Resource) -> int:
    """Return a checksum of a list's stable properties, since lists may be renamed on rotation."""
    name = member.uri if member.from_ is None else f"{member.from_} {member.until}"
    return crc32(name.encode())


def _content(member: Resource) -> int:
    return crc32(f"{member.lastmod} {member.hash} {member.length}".encode())
