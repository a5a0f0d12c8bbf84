"""What the hub did in each minute of the last day.

It is in memory, and each minute replaces a file in the data folder, if there is one. That file is
not flushed: no delivery waits for it, and a crash of the machine may lose it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import astuple

from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin.readings import HubReadings
from rsnotify_hub.admin.status_schemas import HistoryInfo, MinuteInfo
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport
from rsnotify_hub.subscriptions import DeliveryState

log = logging.getLogger("rsnotify.hub")

#: The minutes of a day.
MINUTES = 24 * 60

_NOTHING = (0,) * len(MinuteInfo.__struct_fields__)


class DayHistory:
    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._minutes = deque(_read(file) if file else (), maxlen=MINUTES)
        self._before = (0, 0, 0)

    def info(self) -> HistoryInfo:
        return HistoryInfo(tuple(self._minutes))

    def add(self, readings: HubReadings, now: Instant) -> None:
        """Add what happened since the last call to the present minute."""
        minute, minutes = int(now.timestamp()) // 60, self._minutes
        totals = _totals(readings)
        accepted, delivered, failed = (
            new - old for new, old in zip(totals, self._before, strict=True)
        )
        self._before = totals
        while minutes and minutes[-1].minute >= minute:  # the clock may have been set back
            last = minutes.pop()
            if last.minute == minute:
                accepted += last.accepted
                delivered += last.delivered
                failed += last.failed
        while minutes and minutes[0].minute <= minute - MINUTES:
            minutes.popleft()
        states = readings.subscriptions
        subscribers = readings.websockets + readings.event_streams + sum(states.values())
        troubled = states.get(DeliveryState.RETRYING, 0) + states.get(DeliveryState.GIVEN_UP, 0)
        minutes.append(MinuteInfo(minute, accepted, delivered, failed, subscribers, troubled))

    async def save(self) -> None:
        if self._file is not None:
            await asyncio.to_thread(_write, self._file, msgspec.json.encode(self.info()))


def _totals(readings: HubReadings) -> tuple[int, int, int]:
    counts = readings.statistics.deliveries
    delivered = sum(
        count
        for (way, outcome), count in counts.items()
        if outcome is DeliveryOutcome.DELIVERED and way is not DeliveryTransport.DASHBOARD
    )
    failed = counts[DeliveryTransport.WEBSUB, DeliveryOutcome.FAILED]
    return readings.statistics.accepted, delivered, failed


def joined(parts: Iterable[HistoryInfo]) -> HistoryInfo:
    """Return the history of a hub from those of its nodes."""
    found: dict[int, Sequence[int]] = {}
    for part in parts:
        for each in part.minutes:
            before = found.get(each.minute, _NOTHING)
            found[each.minute] = [sum(pair) for pair in zip(before, astuple(each), strict=True)]
    rows = ([minute, *found[minute][1:]] for minute in sorted(found))
    return HistoryInfo(tuple(msgspec.convert(row, MinuteInfo) for row in rows))


def _read(file: Path) -> tuple[MinuteInfo, ...]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=HistoryInfo).minutes
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("the history of the last day cannot be read, and begins again: %s", error)
        return ()


def _write(file: Path, content: bytes) -> None:
    new = file.with_suffix(".new")
    try:
        new.write_bytes(content)
        os.replace(new, file)
    except OSError as error:
        log.warning("the history of the last day cannot be stored now: %s", error)
