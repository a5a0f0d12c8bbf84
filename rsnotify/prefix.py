"""Whether the part of a Change List that was read before is still what it was.

A transaction that commits late, a Source restored from a backup or a second writer can insert an
entry into the part of an open list that a Destination has read already. Its datetime is then older
than what is synced, so that nothing else shows it. A fingerprint of that part is kept with the
progress.
"""

from __future__ import annotations

from zlib import crc32

from msgspec import Struct

from rsnotify.coverage import Coverage
from rsnotify.datetimes import Instant


class Prefix(Struct, frozen=True, omit_defaults=True):
    """A fingerprint of the entries of one list before an instant; their order does not count.

    Args:
        uri: The list.
        from_: Its `from`.
        before: The datetime of its latest entry. More entries may follow with the same datetime,
            so those are left out.
        count: How many entries are older.
        sum: The sum of their checksums.
    """

    uri: str
    from_: Instant | None
    before: Instant
    count: int = 0
    sum: int = 0


def next_prefix(uri: str, coverage: Coverage, last: Prefix | None) -> tuple[Prefix | None, bool]:
    """Return the fingerprint of a list, and whether it extends the list that was read last.

    Args:
        uri: The list.
        coverage: Its entries.
        last: The fingerprint of the list that was read last, if there is one.

    Returns:
        The fingerprint, None if the list has neither entries nor `from`; and whether the entries
        that were read last time are exactly the same now.
    """
    changes = coverage.changes
    before = max((change.at for change in changes), default=coverage.from_)
    if before is None:
        return None, True
    is_same_list = last is not None and (last.uri, last.from_) == (uri, coverage.from_)
    until = last.before if last is not None and is_same_list else before
    count = total = known = known_total = 0
    for change in changes:
        if change.at < before:
            checksum = crc32(f"{change.uri} {change.change} {change.resource.hash}".encode())
            count += 1
            total += checksum
            if change.at < until:
                known += 1
                known_total += checksum
    is_extended = (
        last is not None
        and is_same_list
        and before >= until
        and (known, known_total) == (last.count, last.sum)
    )
    return Prefix(uri, coverage.from_, before, count, total), is_extended
