"""Evidence in the lists of a Source that its datetimes do not show. Three kinds are detected.

**The part of an open list that was read before has changed** (`ListFingerprint`). A transaction
that commits late, a Source restored from a backup or a second writer can insert an entry there. Its
datetime is then before T, so nothing else reveals it. A fingerprint of that part is stored with the
progress.

**The clock of the Source has gone back** (`ClockRegressionDetector`): its lists lack changes that
they had. The Source may have been restored from a backup, its clock may have been ahead, or one
entry may have had a wrong date. Later changes are then dated before `confirmed`, and would be
skipped as old, perhaps for years. But such a list may also be an old copy from a replica or a
cache. Therefore:

- A list that lacks entries, and still ends where the lists before it ended or later, is not an old
  copy: everything is compared at once.
- All entries of a list that ends before `confirmed` count as new if it begins later, or has more
  entries, than the last list that did not end before. Each costs a look-up if the change was
  applied already, and a request if neither a hash nor a fraction of a second shows that.
- If further lists end before `confirmed`, the clock has gone back: at once if the list itself
  shows it, or if it is the first list of a run and was sent before that instant; otherwise after
  `Pace.stale` seconds, by when a new copy has replaced an old one.

The stored datetimes then no longer prove anything, and everything is compared.

**A closed list or package has gained entries** since a Destination passed it (`ClosedLists`): by a
transaction that commits late, or an entry added before the list was closed. Its index, archive or
dump announces that by another hash, length or `lastmod`, of which a checksum is stored with the
progress. A list that was closed since the last pull is read once more. Reading an archive costs a
request that nothing else needs, so the first pull of each run reads it, and those after a
rotation and after a comparison with the whole set. An index is read anyway. Some Sources give all
lists a new `lastmod` each time, so lists are read again only a few times until the next of these
occasions.
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

#: The types of a checksum, and of microseconds since 1970, in an array.
_CHECKSUM, _MOMENT = "I", "q"
#: For a list in chronological order with more resources, only their number and sum are kept.
_FEW = 300


class ListFingerprint(Struct, frozen=True, omit_defaults=True):
    """A fingerprint of the entries of one list before an instant; their order does not count.

    Args:
        uri: The list.
        from_: Its `from`.
        before: Every change up to here is known from this list and those before it. Entries of this
            exact datetime do not count, as more of them may follow.
        count: How many entries are older.
        sum: The sum of their checksums.
        size: How many entries there are.
        whole: The sum of the checksums of all entries.
        uris: How many resources have entries.
        names: The sum of the checksums of their URIs.
        resources: The checksums themselves, if they are few or the list is not in chronological
            order.
        latest: When each of them changed last.
        is_superseded: Whether the next list is compared with the copy entirely: not all entries are
            applied, or the copy was compared with a Resource List since, whose `at` may be wrong.
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
        """Return whether a list still has the entries that it had when it was read before."""
        if self.is_superseded or (self.uri, self.from_) != (later.uri, later.from_):
            return False
        if self.before == later.before:
            return (self.count, self.sum) == (later.count, later.sum)
        return (self.count, self.sum) == _sum(coverage, self.before)

    def has_lost(self, later: ListFingerprint, coverage: Coverage) -> bool:
        """Return whether a list lacks entries that it had when it was read before.

        Entries may be inserted, or replaced by later ones of the same resource. In such a list,
        only a resource without any entry shows that one is missing.
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
        """Return whether a list lacks changes that this list had within both intervals.

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
        """Return whether a list begins with all entries that this list had."""
        return self.whole == sum(map(_checksum, coverage.changes[: self.size]))

    def has_all_of(self, coverage: Coverage) -> bool:
        """Return whether a list has no entries that this list, perhaps at another URI, lacked."""
        is_whole = self.from_ == coverage.from_ and self.size == len(coverage.changes)
        return is_whole and not self.is_superseded and self.is_appended_to(coverage)

    def is_same_as(self, later: ListFingerprint) -> bool:
        """Return whether a list has exactly the same entries as before."""
        return (self.uri, self.from_, self.whole) == (later.uri, later.from_, later.whole)


def prefix_of(uri: str, coverage: Coverage, confirmed: Instant) -> ListFingerprint:
    """Return the fingerprint of a list; those before it had all changes up to `confirmed`."""
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
    """Return when each resource changed last, by the checksum of its URI."""
    latest: dict[int, int] = {}
    for change in coverage.changes:
        name, at = crc32(change.uri.encode()), to_microseconds(change.at)
        latest[name] = max(at, latest.get(name, at))
    return latest


def _checksum(change: Change) -> int:
    return crc32(f"{change.uri} {change.change} {change.resource.hash}".encode())


#: The longest wait between two comparisons of everything, as a multiple of the first one.
_LONGEST_WAIT = 64
#: By how much the clocks of two servers of one Source may differ.
_SKEW = timedelta(minutes=1)


class _ListSummary(Struct, frozen=True):
    """The properties that distinguish one version of a list from another, and where it ended."""

    from_: Instant | None
    size: int
    last: Change | None
    ends: Instant
    is_behind: bool


class ClockRegressionDetector:
    """Judges the lists of one Source that list the latest changes."""

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
        #: Where the list that was read last ends.
        self.ends: Instant | None = None

    def check_open(
        self, coverage: Coverage, frontier: Frontier, now: float, *, has_lost: bool = False
    ) -> bool:
        """Return whether no entry of an open list, not used yet, may be skipped as old.

        `has_lost` says that it lacks entries that it had.
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
            self._record_loss(coverage)  # the next list may not show it again
            return True
        return is_behind and self._judge(coverage, frontier, before, read, now)

    def check_closed(self, coverage: Coverage, frontier: Frontier, *, has_lost: bool) -> None:
        """Check whether a closed list or a package, not applied yet, lacks changes that were known.

        `has_lost` says that it lacks entries that it had while it was open.
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
        was_listed = bool(frontier.seen)  # else a Resource List may be later than the change list
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
            self._older_since = None  # a quiet Source; a later Resource List was confirmed
        elif goes_on and self._older_since is None:
            self._older_since = now
        is_suspect = was_listed or shows_itself or self._older_since is not None
        return is_new and self._may_be_newer(coverage) and is_suspect

    def _may_be_newer(self, coverage: Coverage) -> bool:
        """Return whether a list may have changes that no complete list had; no old copy has."""
        begins, complete = coverage.from_ or EARLIEST, self._last_complete
        if complete is None:
            return True
        return (begins, len(coverage.changes)) > (complete.from_ or EARLIEST, complete.size)

    @property
    def begins(self) -> Instant:
        """Where the lists begin that count once the clock has gone back."""
        known = (self._begins, self._lost_since, self.ends)
        return min(instant for instant in known if instant is not None)

    @property
    def is_behind(self) -> bool:
        """Whether the list that was read last lacks changes that were listed earlier."""
        return self._has_lost or self._behind_since is not None

    def has_gone_back(self, now: float) -> bool:
        """Return whether the Source's clock has gone back, and everything may be compared now."""
        if now < self._next or self.ends is None:
            return False
        if self._is_proven or self._has_lost:
            return True
        # Whatever the reason: by then, a new copy would have replaced an old one.
        since = (self._older_since, self._behind_since)
        return any(start is not None and now - start >= self._pace.stale for start in since)

    def reset(self, now: float) -> None:
        """Forget what was read, as everything is about to be compared."""
        self._next = now + self._wait
        self._wait = min(2 * self._wait, _LONGEST_WAIT * self._pace.repair)
        self._last_read = self._last_complete = None
        self._older_since = self._behind_since = self._lost_since = None
        self._is_proven = self._has_lost = False


def _lacks_seen(coverage: Coverage, frontier: Frontier) -> bool:
    """Return whether a list that covers the frontier's instant lacks the changes seen at it.

    A later change of the same resource may stand for the earlier one.
    """
    at, begins = frontier.instant, coverage.from_
    if not frontier.seen or not coverage.ordered or begins is None or begins >= at:
        return False
    seen = {uri for uri, _, _ in frontier.seen}
    return not any(change.uri in seen for change in coverage.changes if change.at >= at)


#: The type of a checksum in an array.
_CONTENT_CHECKSUM = "I"
#: How many lists are remembered; older ones are forgotten first.
_MOST = 10_000
#: How many pulls read closed lists again between two occasions.
_REREADS = 3


class KnownLists(Struct, frozen=True, omit_defaults=True):
    """What is stored of closed lists.

    Args:
        through: Closed lists that end no later are known; None before the first pull.
        checksums: For each, a checksum of its interval, and one of what was announced about its
            content.
    """

    through: Instant | None = None
    checksums: bytes = b""


class ClosedLists:
    """The closed lists of one Source; a later run begins with those that are `known`."""

    def __init__(self, known: KnownLists) -> None:
        self.known = known
        stored = array(_CONTENT_CHECKSUM, known.checksums)
        self._checksums = dict(zip(stored[::2], stored[1::2], strict=True))
        self._left = _REREADS
        #: Whether the archive has to be read.
        self.is_archive_due = True

    def begin_period(self) -> None:
        """Allow another read of the archive, and of closed lists that have changed."""
        self.is_archive_due = True
        self._left = _REREADS

    def changed(self, members: Iterable[Resource]) -> list[Resource]:
        """Return the closed lists, of the entries of an index, that have to be read again."""
        members = list(members)
        misdated = self._misdated(members)
        return [
            one
            for one in members
            if (self._left and self._has_changed(one)) or (misdated and _name(one) in misdated)
        ]

    def _misdated(self, members: list[Resource]) -> set[int]:
        """Return the names of unknown lists whose dates are from a clock that was set back.

        By their dates they count as old, so each is read once. The order of the lists shows it,
        or that a list ends before it begins.
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

        `begins` is where the open list begins: what was closed before is known, unless it was
        closed while others were read again (`has_skipped`).
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
        """Forget everything, as the Source's clock has gone back."""
        self.known = KnownLists()
        self._checksums.clear()
        self.begin_period()


def _name(member: Resource) -> int:
    """Return a checksum of what stays the same: lists may be renamed when one is closed."""
    name = member.uri if member.from_ is None else f"{member.from_} {member.until}"
    return crc32(name.encode())


def _content(member: Resource) -> int:
    return crc32(f"{member.lastmod} {member.hash} {member.length}".encode())
