"""Detects closed lists and packages that have gained entries since a Destination passed them.

A transaction that commits late, or an entry that is added before a list is closed, is in a list
that ends before `confirmed`. Its index, archive or dump announces that by another hash, length or
`lastmod`, of which a checksum is stored with the progress. A list that was closed since the last
pull is read once more.

To read an archive costs a request that is needed for nothing else. Therefore it is read by the
first pull of each run, after a rotation and after a comparison with the whole set. An index is read
anyway. Some Sources give all lists a new `lastmod` each time, so lists are read again only a few
times until the next of these occasions.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from zlib import crc32

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Resource

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
        checksums: Of each, a checksum of its interval, and one of what was announced of its
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
        """Have the archive read, and closed lists that have changed."""
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
        """Return the names of unknown lists whose dates are of a clock that was set back.

        They count as old by these, and each is read once. The order of the lists shows it,
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
        self, members: Iterable[Resource], begins: Instant | None, *, has_reread: bool
    ) -> None:
        """Record the entries of closed lists as known, at the end of a pull.

        `begins` is where the open list begins: what was closed before is known.
        """
        self.is_archive_due = False
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
        through = self.known.through
        self._store(at if through is None else max(at, through))
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
    is_dated = member.from_ is not None and member.until is not None
    name = f"{member.from_} {member.until}" if is_dated else member.uri
    return crc32(name.encode())


def _content(member: Resource) -> int:
    return crc32(f"{member.lastmod} {member.hash} {member.length}".encode())
