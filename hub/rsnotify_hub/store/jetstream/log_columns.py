"""The kept entries of one topic's log, without their bodies, in arrays: about 64 bytes each."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from rsnotify_hub.store.jetstream.records import LogRecord, RecordKind

#: The digest of an entry in the log, and the columns of an entry.
_DIGEST = 16
_POSITION, _BEGINS, _FROM, _UNTIL, _RECEIVED, _SIZE, _WIDTH = range(7)
#: Stands for an absent `from`.
_ABSENT = -(2**63)
_KIND_BITS = 2


class LogColumns:
    """The kept entries of one log, in its order; an entry is named by its number from 0.

    Attributes:
        size: The bytes of their bodies.
    """

    __slots__ = ("_digests", "_late", "_rows", "size")

    def __init__(self) -> None:
        self._rows = array("q")
        self._digests = bytearray()
        self._late = 0  # the last position whose `until` is before that of the entry before it
        self.size = 0

    def __len__(self) -> int:
        return len(self._rows) // _WIDTH

    def add(self, record: LogRecord) -> None:
        """Add the entry of a record at the end."""
        if self._rows and record.until < self.until(len(self) - 1):
            self._late = record.position
        from_ = _ABSENT if record.from_ is None else record.from_
        sized = record.size << _KIND_BITS | record.kind
        self._rows.extend(
            (record.position, record.begins, from_, record.until, record.received, sized)
        )
        self._digests += record.digest
        self.size += record.size

    def remove(self, first: int, end: int) -> None:
        """Remove the entries from number `first` to `end` (exclusive)."""
        self.size -= sum(self.length(number) for number in range(first, end))
        del self._rows[first * _WIDTH : end * _WIDTH]
        del self._digests[first * _DIGEST : end * _DIGEST]

    def position(self, number: int) -> int:
        return self._rows[number * _WIDTH + _POSITION]

    def begins(self, number: int) -> int:
        return self._rows[number * _WIDTH + _BEGINS]

    def from_(self, number: int) -> int | None:
        from_ = self._rows[number * _WIDTH + _FROM]
        return None if from_ == _ABSENT else from_

    def until(self, number: int) -> int:
        return self._rows[number * _WIDTH + _UNTIL]

    def received(self, number: int) -> int:
        return self._rows[number * _WIDTH + _RECEIVED]

    def length(self, number: int) -> int:
        return self._rows[number * _WIDTH + _SIZE] >> _KIND_BITS

    def kind(self, number: int) -> RecordKind:
        return RecordKind(self._rows[number * _WIDTH + _SIZE] & (1 << _KIND_BITS) - 1)

    def digest(self, position: int) -> bytes:
        """Return the digest of the entry at a position; empty if it is not kept."""
        number = self.after(position - 1)
        if number == len(self) or self.position(number) != position:
            return b""
        return bytes(self._digests[number * _DIGEST : (number + 1) * _DIGEST])

    def after(self, position: int) -> int:
        """Return the number of the first entry after a position."""
        return bisect_right(range(len(self)), position, key=self.position)

    def find(self, digest: bytes) -> int | None:
        """Return the position of the last entry with a digest."""
        at = self._digests.rfind(digest)
        while at % _DIGEST and at != -1:
            at = self._digests.rfind(digest, 0, at + _DIGEST - 1)
        return None if at == -1 else self.position(at // _DIGEST)

    def ending_from(self, until: int) -> Iterable[int]:
        """Return the numbers of all entries that end at an instant or later, in their order."""
        if self._in_order:
            return range(bisect_left(range(len(self)), until, key=self.until), len(self))
        return self._selected(until)

    def by_end(self, numbers: Iterable[int]) -> Iterable[int]:
        """Return numbers in the order of the ends of the entries."""
        return numbers if self._in_order else sorted(numbers, key=self.until)

    @property
    def _in_order(self) -> bool:
        """Whether the ends are in the order of the log, as they nearly always are."""
        return not self._rows or self._late <= self.position(0)

    def _selected(self, until: int) -> Iterator[int]:
        ends = self._rows[_UNTIL::_WIDTH]
        return (number for number, end in enumerate(ends) if end >= until)
