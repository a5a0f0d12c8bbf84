"""Imports an export into a store, which may have other positions, or logs of its own.

Theory of operation. The log of a topic is imported if the store has none, or one with the same
beginning, as after an interrupted import, or an older whole content. There each cursor moves to the
same fragment. In any other log it moves to the beginning, so that the subscriber receives all that
this log keeps: some of it twice, but nothing is left out. Logs come first, since nodes that run
deliver to a subscription as soon as it is stored.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import groupby

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify_hub.filtering.topic_selection import selection_of_key
from rsnotify_hub.fragments.fragment import Fragment
from rsnotify_hub.store.interface import LogMoved, Store, SubscriptionRecords
from rsnotify_hub.subscriptions import is_expired
from rsnotify_hub.transfer.exporting import IgnoredNews, read_log
from rsnotify_hub.transfer.records import (
    Exported,
    ExportedBroker,
    ExportedFragment,
    ExportedSubscription,
    fragment_of,
    subscription_of,
)

_PAGE_BYTES = 1_000_000
_PAGE_ENTRIES = 256


class ImportReport(Struct):
    """The numbers of records that were imported, and of those that were not."""

    subscriptions: int = 0
    expired: int = 0
    newer: int = 0
    logs: int = 0
    fragments: int = 0
    other_logs: int = 0


class _ImportedLog:
    """The positions of the fragments of a log in the file, and in the store.

    Attributes:
        appended: The number of fragments that were appended.
    """

    def __init__(self) -> None:
        self.appended = 0
        self._before: list[int] = []
        self._now: list[int] = []

    def add(self, before: int, now: int | None) -> None:
        """Add a fragment; the log had it already if it has no position now."""
        self._before.append(before)
        self._now.append(self.end if now is None else now)

    @property
    def end(self) -> int:
        return self._now[-1] if self._now else 0

    def moved(self, cursor: int) -> int:
        """Return a cursor of the file as one of the store."""
        number = bisect_right(self._before, cursor)
        return self._now[number - 1] if number else 0


async def import_records(store: Store, records: Iterable[Exported], now: Instant) -> ImportReport:
    """Import checked records into a store that was just opened; return what was imported.

    Raises:
        StorageError: The store failed. A part may be stored; the import may be repeated.
    """
    report = ImportReport()
    subscriptions: list[ExportedSubscription] = []
    brokers: list[ExportedBroker] = []

    def fragments() -> Iterator[ExportedFragment]:
        for record in records:
            match record:
                case ExportedSubscription():
                    subscriptions.append(record)
                case ExportedBroker():
                    brokers.append(record)
                case ExportedFragment():
                    yield record

    logs = await _import_logs(store, fragments(), report)

    def moved(key: str, cursor: int) -> int:
        log = logs.get(selection_of_key(key).topic)
        return 0 if log is None else log.moved(cursor)

    found = [subscription_of(each, moved(each.topic, each.position)) for each in subscriptions]
    valid = [each for each in found if not is_expired(each, now)]
    positions = {
        each.broker: {key: moved(key, cursor) for key, cursor in each.cursors.items()}
        for each in brokers
    }
    report.subscriptions = await store.restore(SubscriptionRecords(valid, positions))
    report.expired = len(found) - len(valid)
    report.newer = len(valid) - report.subscriptions
    return report


async def _import_logs(
    store: Store, fragments: Iterator[ExportedFragment], report: ImportReport
) -> dict[str, _ImportedLog]:
    """Import all logs; return those in which the cursors of the file have a place."""
    logs: dict[str, _ImportedLog] = {}
    await store.start(IgnoredNews())
    for topic, group in groupby(fragments, lambda each: each.topic):
        log = _ImportedLog()
        try:
            await _import_log(store, topic, group, log)
        except LogMoved:
            report.other_logs += 1
        else:
            logs[topic] = log
        report.logs += log.appended > 0
        report.fragments += log.appended
    return logs


async def _import_log(
    store: Store, topic: str, fragments: Iterator[ExportedFragment], log: _ImportedLog
) -> None:
    """Append to the log of a topic what it does not have.

    Raises:
        LogMoved: It has other fragments than the file, or a node appends to it meanwhile.
    """
    async for entry in read_log(store, topic):
        same = next(fragments, None)
        if same is None:
            return
        if same.body == entry.fragment.body:
            log.add(same.position, entry.position)
        elif _is_newer_content(same, entry.fragment):
            await _append(store, topic, [same], log, after=entry.position)
        else:
            raise LogMoved("the log has other fragments")
    for page in _pages(fragments):
        await _append(store, topic, page, log, after=log.end)


def _is_newer_content(record: ExportedFragment, stored: Fragment) -> bool:
    """Return whether a whole content is newer; subscribers must not receive the older one again."""
    return record.whole and stored.whole and record.until > stored.until


async def _append(
    store: Store, topic: str, page: list[ExportedFragment], log: _ImportedLog, *, after: int
) -> None:
    new = [fragment_of(each) for each in page]
    appended = await store.append(topic, new, after=after, replacing=None)
    positions = {entry.fragment.body: entry.position for entry in appended.entries}
    for each in page:
        log.add(each.position, positions.get(each.body))
    log.appended += len(appended.entries)


def _pages(fragments: Iterable[ExportedFragment]) -> Iterator[list[ExportedFragment]]:
    page: list[ExportedFragment] = []
    size = 0
    for each in fragments:
        page.append(each)
        size += len(each.body)
        if size > _PAGE_BYTES or len(page) == _PAGE_ENTRIES:
            yield page
            page, size = [], 0
    if page:
        yield page
