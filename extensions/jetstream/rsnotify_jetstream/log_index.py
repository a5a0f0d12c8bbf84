"""An in-memory index of all logs, computed from the stream's records in order.

Every node applies the same records in the same order, so all nodes have the same index. The only
exception is logs that nobody appends to: each node trims these by age, using its own clock. The
rules are those of the SQLite store: a record is appended, may replace a heartbeat or a whole
content, and trims its log according to its own `received`. If two records have the same
predecessor, the first is accepted and the second is skipped.

Bodies stay in the stream. The other fields of an entry are in arrays (`LogColumns`), which use
about 64 bytes per entry.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence

from msgspec import Struct

from rsnotify.format.datetimes import Instant, from_microseconds, to_microseconds
from rsnotify_hub.fragments import Interval
from rsnotify_hub.store.interface import Backlog, LogRetention, LogState
from rsnotify_jetstream.log_records import LogRecord, Place, RecordKind

#: Size of an entry's digest in bytes, and the indexes of an entry's columns.
_DIGEST = 16
_POSITION, _BEGINS, _FROM, _UNTIL, _RECEIVED, _SIZE, _WIDTH = range(7)
#: The value that represents an absent `from`.
_ABSENT = -(2**63)
_KIND_BITS = 2
#: Maximum number of entries on a page, and of bytes after which a page ends.
PAGE_ENTRIES, PAGE_BYTES = 256, 1_000_000
_MICROSECOND = from_microseconds(1) - from_microseconds(0)


class Applied(Struct, frozen=True):
    """The effect of a record on the index.

    Args:
        accepted: Whether the record was accepted, because its predecessor was the last record.
        forgotten: Whether the record ended an existing log.
        added: Whether the record added an entry.
        replaced: The position of the entry that the record replaced, if any.
        trimmed: The number of entries that the record trimmed.
    """

    accepted: bool = True
    forgotten: bool = False
    added: bool = False
    replaced: int | None = None
    trimmed: int = 0


class LogIndex:
    """The index of all logs. Its methods return positions where `LogStore` returns entries."""

    def __init__(self, retention: LogRetention) -> None:
        self._retention = retention
        self._logs: dict[str, _TopicIndex] = {}
        self._newest = NewestTopics()

    def apply(self, record: LogRecord) -> Applied:
        """Apply the next record of the stream."""
        if record.kind is RecordKind.CHECK:
            return Applied()
        log = self._logs.get(record.topic)
        existed = log is not None and log.position > 0
        is_of_last_batch = log is not None and log.head == record.head
        if record.after < self.last(record.topic) and not is_of_last_batch:
            return Applied(accepted=False)
        # The reset itself may have been trimmed from the stream.
        is_reset = log is not None and record.reset > log.reset
        if log is not None and existed:
            self._newest.remove(record.topic, log.received)
        if record.kind is RecordKind.RESET:
            self._logs[record.topic] = _TopicIndex(record.position)
            return Applied(forgotten=existed)
        if log is None or is_reset:
            log = self._logs[record.topic] = _TopicIndex(record.reset)
        replaced = log.add(record)
        self._newest.add(record.topic, log.received)
        trimmed = log.trim(record.received, self._retention)
        return Applied(True, is_reset and existed, True, replaced, trimmed)

    def state(self, topic: str) -> LogState | None:
        log = self._log(topic)
        return None if log is None else log.state(topic)

    def states(self) -> list[LogState]:
        return [log.state(topic) for topic, log in self._logs.items() if log.position]

    def newest(self, after: tuple[Instant, str] | None, limit: int) -> list[LogState]:
        start = None if after is None else (to_microseconds(after[0]), after[1])
        return [self._logs[topic].state(topic) for topic in self._newest.page(start, limit)]

    def last(self, topic: str) -> int:
        """Return the position of a topic's last record, which may be a reset."""
        log = self._logs.get(topic)
        return 0 if log is None else log.position or log.reset

    def place(self, topic: str, replacing: int | None) -> Place:
        """Return the place of a topic's next record, which may replace the last entry.

        A whole content is always replaced, because a log has either one whole content or changes.
        """
        log = self._logs.get(topic)
        if log is None:
            return Place()
        number = len(log.entries) - 1
        if number >= 0 and (
            log.entries.position(number) == replacing
            or log.entries.kind(number) is RecordKind.WHOLE
        ):
            number -= 1
        previous = log.entries.position(number) if number >= 0 else 0
        through = log.through if log.position else None
        return Place(self.last(topic), previous, log.reset, through)

    def digest(self, topic: str, position: int) -> bytes:
        """Return the digest of the entry at a position, or empty bytes if there is none."""
        return self._entries(topic).digest(position)

    def find(self, topic: str, digest: bytes) -> int | None:
        """Return the position of the last kept entry with this digest, or None."""
        return self._entries(topic).find(digest)

    def read(self, topic: str, *, after: int, since: Instant | None) -> list[int]:
        entries = self._entries(topic)
        first = entries.after(after)
        numbers: Iterable[int] = range(first, len(entries))
        if since is not None:
            later = _later(entries, to_microseconds(since))
            numbers = (number for number in later if number >= first)
        return _page(entries, numbers)

    def changes(self, topic: str, *, since: Instant | None) -> list[int]:
        entries = self._entries(topic)
        if since is None:
            return _page(entries, entries.by_end(range(len(entries))))
        instant = to_microseconds(since)
        numbers = entries.by_end(list(_later(entries, instant)))
        page = _page(entries, numbers)
        if any(entries.begins(entries.after(position - 1)) <= instant for position in page):
            return page
        across = (number for number in numbers if entries.begins(number) <= instant)
        return _page(entries, across) or page

    def backlogs(self, topic: str, positions: Sequence[int]) -> list[Backlog]:
        entries = self._entries(topic)
        return [_backlog(entries, position) for position in positions]

    def _entries(self, topic: str) -> LogColumns:
        log = self._logs.get(topic)
        return LogColumns() if log is None else log.entries

    def trim(self, topic: str, now: Instant) -> int:
        """Trim a log by age and size, and return the number of trimmed entries."""
        log = self._log(topic)
        return 0 if log is None else log.trim(to_microseconds(now), self._retention)

    def _log(self, topic: str) -> _TopicIndex | None:
        log = self._logs.get(topic)
        return log if log is not None and log.position else None


def _later(entries: LogColumns, instant: int) -> Iterable[int]:
    """Yield the numbers of the entries later than an instant. See `is_later`."""
    for number in entries.ending_from(instant):
        is_heartbeat = entries.kind(number) is RecordKind.HEARTBEAT
        is_late = entries.from_(number) == entries.until(number) and not is_heartbeat
        if entries.until(number) > instant or is_late:
            yield number


def _backlog(entries: LogColumns, position: int) -> Backlog:
    first = entries.after(position)
    count = len(entries) - first
    return Backlog(count, from_microseconds(entries.begins(first)) if count else None)


def _page(entries: LogColumns, numbers: Iterable[int]) -> list[int]:
    positions: list[int] = []
    size = 0
    for number in numbers:
        positions.append(entries.position(number))
        size += entries.length(number)
        if size > PAGE_BYTES or len(positions) == PAGE_ENTRIES:
            break
    return positions


class _TopicIndex:
    """The log of one topic. If `position` is 0, the log was deleted."""

    __slots__ = ("entries", "head", "position", "received", "reset", "through")

    def __init__(self, reset: int = 0) -> None:
        self.entries = LogColumns()
        self.position = 0
        self.head = 0
        self.reset = reset
        self.through = 0
        self.received = 0

    def add(self, record: LogRecord) -> int | None:
        """Add a record, and return the position of the entry that it replaces, if any."""
        replaced = self._replaced(record)
        self.entries.add(record)
        latest = max(record.until, record.through)
        self.through = latest if self.position == 0 else max(self.through, latest)
        self.position, self.head = record.position, record.head
        self.received = record.received
        return replaced

    def _replaced(self, record: LogRecord) -> int | None:
        # At most one entry is replaced, unless late records were accepted because the record that
        # made them late had already been deleted.
        first, end = self.entries.after(record.previous), len(self.entries)
        if first == end:
            return None
        replaced = self.entries.position(end - 1)
        self.entries.remove(first, end)
        return replaced

    def trim(self, now: int, retention: LogRetention) -> int:
        """Remove the oldest entries that exceed the retention, and return their number."""
        too_old = now - retention.age // _MICROSECOND
        size, cut = self.entries.size, 0
        for number in range(len(self.entries)):
            too_much = size > retention.size and self.entries.position(number) != self.position
            # A whole content is always the last entry, and never too old.
            is_whole = self.entries.kind(number) is RecordKind.WHOLE
            if is_whole or (self.entries.received(number) > too_old and not too_much):
                break
            cut = number + 1
            size -= self.entries.length(number)
        if cut:
            self.entries.remove(0, cut)
        return cut

    def state(self, topic: str) -> LogState:
        entries = self.entries
        kept = len(entries)
        last = kept - 1
        ends_here = kept > 0 and entries.position(last) == self.position
        kind = entries.kind(last) if ends_here else None
        heartbeat = None
        if kind is RecordKind.HEARTBEAT:
            from_, until = entries.from_(last), entries.until(last)
            heartbeat = Interval(from_microseconds(from_ or 0), from_microseconds(until))
        return LogState(
            topic=topic,
            first=entries.position(0) if kept else self.position + 1,
            position=self.position,
            begins=from_microseconds(entries.begins(0) if kept else self.through),
            through=from_microseconds(self.through),
            received=from_microseconds(self.received),
            kept=kept,
            size=entries.size,
            heartbeat=heartbeat,
            whole=kind is RecordKind.WHOLE,
        )


class LogColumns:
    """The kept entries of a log, in order. Entries are numbered from 0.

    Attributes:
        size: The total size of the entries' bodies, in bytes.
    """

    __slots__ = ("_digests", "_late", "_rows", "size")

    def __init__(self) -> None:
        self._rows = array("q")
        self._digests = bytearray()
        self._late = 0  # the last position with an `until` before the previous entry's
        self.size = 0

    def __len__(self) -> int:
        return len(self._rows) // _WIDTH

    def add(self, record: LogRecord) -> None:
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
        """Return the digest of the entry at a position, or empty bytes if it is not kept."""
        number = self.after(position - 1)
        if number == len(self) or self.position(number) != position:
            return b""
        return bytes(self._digests[number * _DIGEST : (number + 1) * _DIGEST])

    def after(self, position: int) -> int:
        return bisect_right(range(len(self)), position, key=self.position)

    def find(self, digest: bytes) -> int | None:
        at = self._digests.rfind(digest)
        while at % _DIGEST and at != -1:
            at = self._digests.rfind(digest, 0, at + _DIGEST - 1)
        return None if at == -1 else self.position(at // _DIGEST)

    def ending_from(self, until: int) -> Iterable[int]:
        """Return the numbers of the entries that end at `until` or later, in the log's order."""
        if self._in_order:
            return range(bisect_left(range(len(self)), until, key=self.until), len(self))
        ends = self._rows[_UNTIL::_WIDTH]
        return (number for number, end in enumerate(ends) if end >= until)

    def by_end(self, numbers: Iterable[int]) -> Iterable[int]:
        return numbers if self._in_order else sorted(numbers, key=self.until)

    @property
    def _in_order(self) -> bool:
        """Whether the entries are also in the order of `until`, which is nearly always true."""
        return not self._rows or self._late <= self.position(0)


class NewestTopics:
    """The topics, in the order in which they last received a record.

    The newest topic is at the end of the list, where nearly all changes occur. The cost of a page
    does not depend on the number of topics.
    """

    def __init__(self) -> None:
        self._topics: list[tuple[int, str]] = []

    def add(self, topic: str, received: int) -> None:
        insort(self._topics, (received, topic))

    def remove(self, topic: str, received: int) -> None:
        del self._topics[bisect_left(self._topics, (received, topic))]

    def page(self, after: tuple[int, str] | None, limit: int) -> list[str]:
        """Return a page of topics, newest first. Topics of the same instant are sorted by name.

        `after` is the instant and the topic at the end of the previous page.
        """
        topics = self._topics
        end = len(topics)
        found: list[tuple[int, str]] = []
        if after is not None:
            first = bisect_right(topics, after)
            found = topics[first : min(first + limit, self._begin(after[0] + 1))]
            end = self._begin(after[0])
        while end and len(found) < limit:
            begin = self._begin(topics[end - 1][0])
            found += topics[begin : min(begin + limit - len(found), end)]
            end = begin
        return [topic for _, topic in found]

    def _begin(self, received: int) -> int:
        return bisect_left(self._topics, (received, ""))
