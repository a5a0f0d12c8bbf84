"""The history of a hub: the minutes of the last day, and the quarter-hours of the last week.

It is updated once a minute from existing counters, so it adds no cost to deliveries. It is kept in
memory and, if the hub has a data folder, in a file that is replaced every minute. The file is not
flushed, so it may be lost if the machine crashes.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Container, Iterable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin.hub_readings import HubReadings, count_troubled
from rsnotify_hub.admin.schemas import HistoryInfo, MinuteInfo
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport

logger = logging.getLogger("rsnotify.hub")

#: The lengths of a day, a week and a quarter-hour, in minutes.
DAY, WEEK, QUARTER = 24 * 60, 7 * 24 * 60, 15

#: The version of the file. Version 2 added quarter-hours.
_VERSION = 2

#: The fields to add when the rows of two periods, or of two nodes, are combined. For all other
#: fields, the maximum is used.
_ADDED_IN_TIME = ("accepted", "delivered", "failed", "seconds")
_ADDED_OVER_NODES = (
    "accepted",
    "delivered",
    "failed",
    "subscribers",
    "troubled",
    "delivery_queue",
    "commit_queue",
    "live_queue",
)


class _HistoryFile(HistoryInfo, frozen=True):
    version: int = 1


class HubHistory:
    def __init__(self, file: Path | None, now: Instant) -> None:
        self._file = file
        self._minutes: deque[MinuteInfo] = deque()
        self._quarters: deque[MinuteInfo] = deque()
        self._counted, self._until = (0, 0, 0), now
        stored = _read(file) if file else _HistoryFile(())
        self._minutes.extend(stored.minutes)
        self._quarters.extend(stored.quarters)
        if stored.version < _VERSION:
            for each in stored.minutes:
                _put(self._quarters, _quarter(each), keep=WEEK)

    def info(self) -> HistoryInfo:
        return HistoryInfo(tuple(self._minutes), list(self._quarters))

    def add(self, readings: HubReadings, now: Instant) -> None:
        """Add the work done since the last call to the current minute."""
        counted = _counts(readings)
        accepted, delivered, failed = (
            count - before for count, before in zip(counted, self._counted, strict=True)
        )
        seconds = round((now - self._until).total_seconds())
        self._counted, self._until = counted, now
        lag_p50, lag_p99 = readings.lag_percentiles()
        minute = MinuteInfo(
            int(now.timestamp()) // 60,
            accepted,
            delivered,
            failed,
            subscribers=readings.count_subscribers(),
            troubled=count_troubled(readings.subscriptions),
            seconds=max(1, seconds),  # the clock may have been set back
            lag_p50=lag_p50,
            lag_p99=lag_p99,
            delivery_queue=readings.delivery_queue,
            commit_queue=readings.commit_queue,
            live_queue=readings.live.live_queue,
        )
        _put(self._minutes, minute, keep=DAY)
        _put(self._quarters, _quarter(minute), keep=WEEK)

    async def save(self) -> None:
        if self._file is not None:
            content = _HistoryFile(tuple(self._minutes), list(self._quarters), _VERSION)
            await asyncio.to_thread(_write, self._file, msgspec.json.encode(content))


def _counts(readings: HubReadings) -> tuple[int, int, int]:
    counts = readings.statistics.deliveries
    delivered = sum(
        count
        for (way, outcome), count in counts.items()
        if outcome is DeliveryOutcome.DELIVERED and way != DeliveryTransport.DASHBOARD
    )
    failed = counts[DeliveryTransport.WEBSUB, DeliveryOutcome.FAILED]
    return readings.statistics.accepted, delivered, failed


def _quarter(minute: MinuteInfo) -> MinuteInfo:
    return replace(minute, minute=minute.minute - minute.minute % QUARTER)


def _put(rows: deque[MinuteInfo], row: MinuteInfo, *, keep: int) -> None:
    """Append a row, or combine it with the last row if that is of the same period."""
    while rows and rows[-1].minute >= row.minute:  # the clock may have been set back
        last = rows.pop()
        if last.minute == row.minute:
            row = _combined(last, row, _ADDED_IN_TIME)
    while rows and rows[0].minute <= row.minute - keep:
        rows.popleft()
    rows.append(row)


def _combined(one: MinuteInfo, other: MinuteInfo, added: Container[str]) -> MinuteInfo:
    values: dict[str, float | None] = {}
    for name in MinuteInfo.__struct_fields__[1:]:
        both = (getattr(one, name), getattr(other, name))
        known = [value for value in both if value is not None]
        combine: Callable[[Iterable[float]], float] = sum if name in added else max
        values[name] = combine(known) if known else None
    return replace(one, **values)


def merge_histories(histories: Iterable[HistoryInfo]) -> HistoryInfo:
    """Merge the histories of all nodes into the history of the hub."""
    histories = list(histories)
    return HistoryInfo(
        tuple(_merge_rows(row for each in histories for row in each.minutes)),
        _merge_rows(row for each in histories for row in each.quarters),
    )


def _merge_rows(rows: Iterable[MinuteInfo]) -> list[MinuteInfo]:
    found: dict[int, MinuteInfo] = {}
    for row in rows:
        before = found.get(row.minute)
        found[row.minute] = row if before is None else _combined(before, row, _ADDED_OVER_NODES)
    return [found[minute] for minute in sorted(found)]


def _read(file: Path) -> _HistoryFile:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_HistoryFile)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        logger.warning("cannot read the history of the last week, starting a new one: %s", error)
    return _HistoryFile(())


def _write(file: Path, content: bytes) -> None:
    new = file.with_suffix(".new")
    try:
        new.write_bytes(content)
        os.replace(new, file)
    except OSError as error:
        logger.warning("cannot save the history of the last week: %s", error)
