"""Detects changes to a Source's lists that datetimes do not reveal. There are three kinds.

**The part of an open list that was read before has changed** (`ListFingerprint`). A late commit, a
restored backup or a second writer can insert an entry dated before T. To detect this, the
fingerprint of that part is stored with the progress.

**The Source's clock has gone back** (`ClockRegressionDetector`), and its lists lack known changes.
The Source may have been restored from a backup, its clock may have been fast, or one entry may have
had a wrong date. Later changes are dated before `confirmed`, and would be skipped as old, perhaps
for years. But such a list may also be an old copy from a replica or a cache:

    the list lacks entries, but ends no earlier       not an old copy: everything is compared
      than the previous lists
    the list ends before `confirmed`, but begins      all its entries count as new. Each costs a
      later, or has more entries, than the last         look-up, and a request unless a hash or a
      list that did not                                 precise datetime shows that it is applied
    further lists end before `confirmed`              the clock has gone back: at once if the list
                                                        itself proves it, or is the first of a run
                                                        and was sent before that instant; otherwise
                                                        after `Pace.stale`, when a new copy would
                                                        have replaced an old one

If the clock has gone back, stored datetimes prove nothing, and everything is compared.

**A closed list or package has gained entries** since it was read (`ClosedLists`), from a late
commit, or because entries were added just before it was closed. Its index, archive or dump then
states another hash, length or `lastmod`, of which a checksum is stored with the progress. Such a
list is reread, and so is a list that was closed since the last pull. Reading an archive costs an
extra request, so only the first pull of each run does so, and pulls after a rotation or a full
comparison. Some Sources change the `lastmod` of all lists at each request, so lists are reread only
a few times until the next such pull.
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
_CHECKSUM, _MICROSECONDS = "I", "q"
#: Maximum number of resources for which the fingerprint of a chronological list has the checksum of
#: each. For longer lists, it has only their sum.
_MAX_SEPARATE_CHECKSUMS = 300


class ListFingerprint(Struct, frozen=True, omit_defaults=True):
    """A fingerprint of the entries of a list before an instant, regardless of their order.

    Args:
        uri: The URI of the list.
        from_: The `from` of the list.
        before: The instant up to which this list and earlier ones contain all changes. Entries
            dated exactly `before` are ignored, because more of them may follow.
        count: The number of entries before that instant.
        sum: The sum of the checksums of these entries.
        size: The number of all entries.
        whole: The sum of the checksums of all entries.
        uris: The number of resources with entries.
        names: The sum of the checksums of their URIs.
        resources: The checksum of each URI, unless there are many in a chronological list.
        latest: The time of the last change of each of these resources.
        is_superseded: Whether all entries of the next list must be compared with the copy. This is
            necessary after a comparison with a Resource List, because its `at` may be wrong, and
            until all entries are applied.
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
        """Return whether a list still has all entries that it had when it was last read."""
        if self.is_superseded or (self.uri, self.from_) != (later.uri, later.from_):
            return False
        if self.before == later.before:
            return (self.count, self.sum) == (later.count, later.sum)
        return (self.count, self.sum) == _sum(coverage, self.before)

    def has_lost(self, later: ListFingerprint, coverage: Coverage) -> bool:
        """Return whether a list lacks entries that it had when it was last read.

        Entries may have been inserted, or replaced by later entries of the same resource. Then only
        a resource without any entry proves that an entry is missing.
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
        """Return whether a list lacks changes of this list that are within both intervals.

        Entries outside the interval of their own list have wrong datetimes, and are ignored.
        """
        if not self.latest:
            return False
        assert coverage.from_ is not None
        assert coverage.until is not None
        after = to_microseconds(max(coverage.from_, self.from_))
        until = to_microseconds(min(coverage.until, self.before))
        now = _latest(coverage)
        had = zip(array(_CHECKSUM, self.resources), array(_MICROSECONDS, self.latest), strict=True)
        return any(after < at <= until and now.get(name, after) < at for name, at in had)

    def is_appended_to(self, coverage: Coverage) -> bool:
        """Return whether a list begins with all entries of this list."""
        return self.whole == sum(map(_checksum, coverage.changes[: self.size]))

    def has_all_of(self, coverage: Coverage) -> bool:
        """Return whether a list, perhaps at another URI, has the same entries as this one."""
        is_whole = self.from_ == coverage.from_ and self.size == len(coverage.changes)
        return is_whole and not self.is_superseded and self.is_appended_to(coverage)

    def is_same_as(self, later: ListFingerprint) -> bool:
        """Return whether two fingerprints are of the same list with the same entries."""
        return (self.uri, self.from_, self.whole) == (later.uri, later.from_, later.whole)


def fingerprint_of(uri: str, coverage: Coverage, confirmed: Instant) -> ListFingerprint:
    """Return the fingerprint of a list. Earlier lists contain all changes up to `confirmed`."""
    assert coverage.from_ is not None
    assert coverage.until is not None
    before = max(coverage.until, confirmed)
    latest = _latest(coverage)
    names = sorted(latest)
    count, total = _sum(coverage, before)
    later = sum(_checksum(change) for change in coverage.changes if change.at >= before)
    is_kept = len(names) <= _MAX_SEPARATE_CHECKSUMS or not coverage.ordered
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
        array(_MICROSECONDS, map(latest.__getitem__, names)).tobytes() if is_kept else b"",
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


#: Maximum time between two full comparisons, as a multiple of `Pace.repair`.
_MAX_WAIT_FACTOR = 64
#: Maximum difference between the clocks of a Source's servers.
_MAX_CLOCK_SKEW = timedelta(minutes=1)


class _ListSummary(Struct, frozen=True):
    """The properties that distinguish versions of a list, and the end of this version."""

    from_: Instant | None
    size: int
    last: Change | None
    ends: Instant
    is_behind: bool


class ClockRegressionDetector:
    """Detects that a Source's clock has gone back, from the lists of its latest changes."""

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
        """Check an open list before its use. Return whether none of its entries counts as old.

        `has_lost` means that the list lacks entries that it had before.
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
            self._record_loss(coverage)  # the next list may not show the loss
            return True
        return is_behind and self._judge(coverage, frontier, before, read, now)

    def check_closed(self, coverage: Coverage, frontier: Frontier, *, has_lost: bool) -> None:
        """Record whether a closed list or package lacks known changes. Call this before its use.

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
        # Without changes seen there, `confirmed` may be from a Resource List.
        was_listed = bool(frontier.seen)
        shows_itself = coverage.latest >= frontier.instant
        sent = coverage.sent
        is_back = sent is None or postponed(sent, _MAX_CLOCK_SKEW) < frontier.instant
        is_first = was_listed and before is None and is_back
        self._is_proven = self._is_proven or shows_itself or is_first
        is_new = before != read
        goes_on = before is not None and (
            (before.is_behind and is_new) or (coverage.from_ or EARLIEST) > before.ends
        )
        if not is_back:
            self._older_since = None  # no changes since a Resource List that was compared
        elif goes_on and self._older_since is None:
            self._older_since = now
        is_suspect = was_listed or shows_itself or self._older_since is not None
        return is_new and self._may_be_newer(coverage) and is_suspect

    def _may_be_newer(self, coverage: Coverage) -> bool:
        """Return whether a list may have new changes, unlike an old copy."""
        begins, complete = coverage.from_ or EARLIEST, self._last_complete
        if complete is None:
            return True
        return (begins, len(coverage.changes)) > (complete.from_ or EARLIEST, complete.size)

    @property
    def begins(self) -> Instant:
        """The instant at which to begin after the clock has gone back."""
        known = (self._begins, self._lost_since, self.ends)
        return min(instant for instant in known if instant is not None)

    @property
    def is_behind(self) -> bool:
        """Whether the last list that was read lacks changes that were listed before."""
        return self._has_lost or self._behind_since is not None

    def has_gone_back(self, now: float) -> bool:
        """Return whether the Source's clock has gone back, and everything may be compared now."""
        if now < self._next or self.ends is None:
            return False
        if self._is_proven or self._has_lost:
            return True
        # By then, a new copy of the list would have replaced an old one.
        since = (self._older_since, self._behind_since)
        return any(start is not None and now - start >= self._pace.stale for start in since)

    def reset(self, now: float) -> None:
        """Forget all lists, because everything is about to be compared."""
        self._next = now + self._wait
        self._wait = min(2 * self._wait, _MAX_WAIT_FACTOR * self._pace.repair)
        self._last_read = self._last_complete = None
        self._older_since = self._behind_since = self._lost_since = None
        self._is_proven = self._has_lost = False


def _lacks_seen(coverage: Coverage, frontier: Frontier) -> bool:
    """Return whether a list that covers the frontier's instant lacks all changes seen there.

    A change also counts as present if a later change of its resource replaces it.
    """
    at, begins = frontier.instant, coverage.from_
    if not frontier.seen or not coverage.ordered or begins is None or begins >= at:
        return False
    seen = {uri for uri, _, _ in frontier.seen}
    return not any(change.uri in seen for change in coverage.changes if change.at >= at)


#: Maximum number of closed lists to remember. The oldest are forgotten first.
_MAX_KNOWN_LISTS = 10_000
#: Maximum number of pulls that reread closed lists, until `begin_period` allows more.
_MAX_REREADS = 3


class KnownLists(Struct, frozen=True, omit_defaults=True):
    """The stored information about closed lists.

    Args:
        through: The instant up to which closed lists are known; None before the first pull.
        checksums: For each list, a checksum that identifies it, and one of the hash, length and
            `lastmod` in its entry.
    """

    through: Instant | None = None
    checksums: bytes = b""


class ClosedLists:
    """The closed lists of one Source. The next run starts with those in `known`."""

    def __init__(self, known: KnownLists) -> None:
        self.known = known
        stored = array(_CHECKSUM, known.checksums)
        self._checksums = dict(zip(stored[::2], stored[1::2], strict=True))
        self._left = _MAX_REREADS
        #: Whether the archive has to be read.
        self.is_archive_due = True

    def begin_period(self) -> None:
        """Allow another read of the archive and of closed lists that have changed."""
        self.is_archive_due = True
        self._left = _MAX_REREADS

    def changed(self, members: Iterable[Resource]) -> list[Resource]:
        """Return the entries of an index whose closed lists must be reread."""
        members = list(members)
        misdated = self._misdated(members)
        return [
            one
            for one in members
            if (self._left and self._has_changed(one)) or (misdated and _name(one) in misdated)
        ]

    def _misdated(self, members: list[Resource]) -> set[int]:
        """Return the names of unknown lists that only look old, because a clock was set back.

        The lists are out of order, or a list ends before it begins. Each is read once.
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
        """Record the entries of closed lists at the end of a pull.

        `begins` is the beginning of the open list. Lists closed by then are known, unless one was
        closed while others were being reread (`has_skipped`).
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
        """Record a comparison with the whole set as of an instant."""
        self._store(max(at, self.known.through or at))
        self.begin_period()

    def _store(self, through: Instant | None) -> None:
        while len(self._checksums) > _MAX_KNOWN_LISTS:
            del self._checksums[next(iter(self._checksums))]
        pairs = [number for pair in self._checksums.items() for number in pair]
        now = KnownLists(through, array(_CHECKSUM, pairs).tobytes())
        if now != self.known:
            self.known = now

    def reset(self) -> None:
        """Forget everything, because the Source's clock has gone back."""
        self.known = KnownLists()
        self._checksums.clear()
        self.begin_period()


def _name(member: Resource) -> int:
    """Return a checksum that identifies a list even if a rotation changes its URI."""
    name = member.uri if member.from_ is None else f"{member.from_} {member.until}"
    return crc32(name.encode())


def _content(member: Resource) -> int:
    return crc32(f"{member.lastmod} {member.hash} {member.length}".encode())
