"""Fingerprints, which reveal changes to the part of an open list that was read before.

A late commit, a restored backup or a second writer can insert an entry dated before T, which
datetimes do not reveal. The fingerprint of the part that was read is stored with the progress.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from zlib import crc32

from msgspec import Struct

from rsnotify.format.coverage import Change, Coverage
from rsnotify.format.datetimes import Instant, to_microseconds

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
        if later.from_ < self.from_:
            return True  # a period that was closed is open again, perhaps at another URI
        if (self.uri, self.from_) != (later.uri, later.from_):
            return False
        if later.uris < self.uris or (later.uris == self.uris and later.names != self.names):
            return True
        if self.is_appended_to(coverage.changes):
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

    def is_appended_to(self, entries: Sequence[Change]) -> bool:
        """Return whether a list begins with all entries of this list."""
        return self.whole == sum(map(_checksum, entries[: self.size]))

    def has_all_of(self, coverage: Coverage) -> bool:
        """Return whether a list, perhaps at another URI, has the same entries as this one."""
        is_whole = self.from_ == coverage.from_ and self.size == len(coverage.changes)
        return is_whole and not self.is_superseded and self.is_appended_to(coverage.changes)

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
