"""Whether the part of a Change List that was read before is still what it was.

A transaction that commits late, a Source restored from a backup or a second writer can insert an
entry into the part of an open list that a Destination has read already. Its datetime is then older
than what is synced, so that nothing else shows it. A fingerprint of that part is kept with the
progress.
"""

from __future__ import annotations

from array import array
from zlib import crc32

from msgspec import Struct

from rsnotify.coverage import Change, Coverage
from rsnotify.datetimes import Instant

#: The type of a checksum in an array.
_CHECKSUM = "I"
#: Of a list in chronological order with more resources, only their number and sum are kept.
_FEW = 1_000


class Prefix(Struct, frozen=True, omit_defaults=True):
    """A fingerprint of the entries of one list before an instant; their order does not count.

    Args:
        uri: The list.
        from_: Its `from`.
        before: Through here every change is known from lists, this one and those before it. More
            entries may come with this very datetime, so they do not count.
        count: How many entries are older.
        sum: The sum of their checksums.
        size: How many entries there are.
        whole: The sum of the checksums of all entries.
        uris: How many resources have entries.
        names: The sum of the checksums of their URIs.
        resources: The checksums themselves, if these are few, or the list is not in chronological
            order.
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

    def is_extended_by(self, later: Prefix, coverage: Coverage) -> bool:
        """Return whether a list still has the entries that it had when it was read before.

        Args:
            later: The fingerprint of the list now.
            coverage: Its entries.
        """
        if (self.uri, self.from_) != (later.uri, later.from_):
            return False
        if self.before == later.before:
            return (self.count, self.sum) == (later.count, later.sum)
        return (self.count, self.sum) == _sum(coverage, self.before)

    def has_lost(self, later: Prefix, coverage: Coverage) -> bool:
        """Return whether a list lacks entries that it had when it was read before.

        Where entries may be inserted, or replaced by later ones of the same resource, only a
        resource that has none any more shows that something is missing.

        Args:
            later: The fingerprint of the list now.
            coverage: Its entries.
        """
        if self.uri != later.uri or self.from_ is None or later.from_ is None:
            return False
        if self.from_ != later.from_:
            return later.from_ < self.from_  # what was closed since is open again
        if later.uris < self.uris or (later.uris == self.uris and later.names != self.names):
            return True
        if self._is_appended_to(coverage):
            return False
        if self.resources:
            now = {_name(change.uri) for change in coverage.changes}
            return not now.issuperset(array(_CHECKSUM, self.resources))
        return not coverage.ordered or _sum(coverage, self.before)[0] < self.count

    def _is_appended_to(self, coverage: Coverage) -> bool:
        return self.whole == sum(map(_checksum, coverage.changes[: self.size]))

    def is_same_as(self, later: Prefix) -> bool:
        """Return whether a list has the same entries as before, and none more."""
        return (self.uri, self.from_, self.whole) == (later.uri, later.from_, later.whole)


def prefix_of(uri: str, coverage: Coverage, confirmed: Instant) -> Prefix | None:
    """Return the fingerprint of a list; None if the list covers nothing.

    Args:
        uri: The list.
        coverage: Its entries.
        confirmed: Through here the lists before it had all changes.
    """
    if coverage.until is None:
        return None
    before = max(coverage.until, confirmed)
    names = sorted({_name(change.uri) for change in coverage.changes})
    count, total = _sum(coverage, before)
    later = sum(_checksum(change) for change in coverage.changes if change.at >= before)
    return Prefix(
        uri,
        coverage.from_,
        before,
        count,
        total,
        len(coverage.changes),
        total + later,
        len(names),
        sum(names),
        array(_CHECKSUM, names).tobytes() if len(names) <= _FEW or not coverage.ordered else b"",
    )


def _sum(coverage: Coverage, before: Instant) -> tuple[int, int]:
    checksums = [_checksum(change) for change in coverage.changes if change.at < before]
    return len(checksums), sum(checksums)


def _checksum(change: Change) -> int:
    return crc32(f"{change.uri} {change.change} {change.resource.hash}".encode())


def _name(uri: str) -> int:
    return crc32(uri.encode())
