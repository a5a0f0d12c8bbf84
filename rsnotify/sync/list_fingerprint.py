"""Detects whether the part of a Change List that was read before has changed.

A transaction that commits late, a Source restored from a backup or a second writer can insert an
entry into the part of an open list that a Destination has read already. Its datetime is then before
T, so nothing else reveals it. A fingerprint of that part is stored with the progress.
"""

from __future__ import annotations

from array import array
from zlib import crc32

from msgspec import Struct

from rsnotify.format.coverage import EARLIEST, Change, Coverage
from rsnotify.format.datetimes import Instant, to_microseconds

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
            very datetime do not count, as more of them may follow.
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
    from_: Instant | None
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
        if self.uri != later.uri or self.from_ is None or later.from_ is None:
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
        if not self.latest or coverage.from_ is None or coverage.until is None:
            return False
        after = to_microseconds(max(coverage.from_, self.from_ or EARLIEST))
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

    def is_followed_by(self, later: ListFingerprint) -> bool:
        """Return whether this list was closed, and another one is open now."""
        return self.from_ is not None and later.from_ is not None and self.from_ < later.from_

    def is_same_as(self, later: ListFingerprint) -> bool:
        """Return whether a list has exactly the same entries as before."""
        return (self.uri, self.from_, self.whole) == (later.uri, later.from_, later.whole)


def prefix_of(uri: str, coverage: Coverage, confirmed: Instant) -> ListFingerprint | None:
    """Return the fingerprint of a list; None if the list covers nothing.

    The lists before it had all changes up to `confirmed`.
    """
    if coverage.until is None:
        return None
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
