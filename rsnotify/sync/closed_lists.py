"""Detects closed lists and packages that have gained entries since they were read.

The entries may be from a late commit, or were added just before the list was closed. The index,
archive or dump then states another hash, length or `lastmod`, of which a checksum is stored with
the progress. Such a list is reread. So is a list that was closed since the last pull and, after a
comparison with a Resource List, one that ends after the latest `lastmod` in it, because the `at` of
the Resource List may be too late. If the comparison deletes resources, such a list that begins
before `at` is reread even if it is known, because it may have announced them.

Reading an archive costs an extra request, so only the first pull of each run does so, and pulls
after a rotation or a full comparison. Some Sources change the `lastmod` of all lists at each
request, so lists are reread only a few times until the next such pull.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from zlib import crc32

from msgspec import Struct

from rsnotify.format.coverage import EARLIEST
from rsnotify.format.datetimes import Instant, just_before
from rsnotify.format.model import Resource

#: The array type for checksums.
_CHECKSUM = "I"
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
        compared: The `at` of a comparison that deletes resources, until the lists are reread.
    """

    through: Instant | None = None
    checksums: bytes = b""
    compared: Instant | None = None


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
        known, compared = self._checksums.get(_name(member)), self.known.compared
        is_later = until > _before_second(through)
        if known is None:
            return is_later
        may_differ = is_later and compared is not None and (member.from_ or EARLIEST) < compared
        return may_differ or known != _content(member)

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
        if has_skipped:
            begins = None
        if has_reread:
            self._left -= 1
        elif not self._left:
            members = [one for one in members if not self._has_changed(one)]
        closed = [(one, one.until) for one in members if one.until is not None]
        # Further lists may be closed within the same second.
        self.is_archive_due = has_skipped or any(
            until.microsecond == 0 and _name(one) not in self._checksums for one, until in closed
        )
        through = [self.known.through, begins, *(until for _, until in closed)]
        for member, _ in closed:
            name = _name(member)
            if self._checksums.get(name) != _content(member):
                self._checksums.pop(name, None)
                self._checksums[name] = _content(member)
        self._store(max((one for one in through if one is not None), default=None))

    def cover(self, until: Instant, compared: Instant | None) -> None:
        """Record a comparison with the whole set, which had all changes up to an instant.

        If it deletes resources, `compared` is its `at`.
        """
        known = self.known
        if compared is not None:
            through = min(until, known.through or until)
            self._store(through, max(compared, known.compared or compared))
        elif known.compared is None:
            self._store(max(until, known.through or until))
        self.begin_period()

    def _store(self, through: Instant | None, compared: Instant | None = None) -> None:
        while len(self._checksums) > _MAX_KNOWN_LISTS:
            del self._checksums[next(iter(self._checksums))]
        pairs = [number for pair in self._checksums.items() for number in pair]
        now = KnownLists(through, array(_CHECKSUM, pairs).tobytes(), compared)
        if now != self.known:
            self.known = now

    def reset(self) -> None:
        """Forget everything, because the Source's clock has gone back."""
        self.known = KnownLists()
        self._checksums.clear()
        self.begin_period()


def _before_second(instant: Instant) -> Instant:
    """Return the instant or, if it may denote a whole second, the last one before.

    If a Source writes whole seconds, several lists may end within the same one.
    """
    return instant if instant.microsecond else just_before(instant)


def _name(member: Resource) -> int:
    """Return a checksum that identifies a list even if a rotation changes its URI."""
    name = member.uri if member.from_ is None else f"{member.from_} {member.until}"
    return crc32(name.encode())


def _content(member: Resource) -> int:
    return crc32(f"{member.lastmod} {member.hash} {member.length}".encode())
