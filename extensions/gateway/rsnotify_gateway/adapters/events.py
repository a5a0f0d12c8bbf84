"""Server-Sent Events whose data is JSON, such as Wikimedia EventStreams.

A mapping in the configuration states where an event has the URI of its resource, the datetime and
the type of the change.

- Granularity: that of the datetimes in the events. Each event is a change.
- A deletion is seen if the mapping names the types of change that are deletions; otherwise never.
- The set has the resources with an event since the gateway connected first. A stream has no list of
  all resources, so nothing can be compared with it.
- A connection resumes after the last event (Last-Event-ID). What a server no longer has then is
  missed, and that cannot be noticed. If its events have no ids, each new connection is such a gap.
- A silent stream may be a quiet or a broken one, so the datetime of the latest event is what is
  claimed to be checked, less the time by which events were out of order on this connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import Unavailable
from rsnotify.format.datetimes import format_datetime, to_microseconds
from rsnotify.format.model import Resource
from rsnotify_gateway.adapter import (
    KnownEntries,
    MissingEntry,
    OriginBatch,
    OriginTerms,
    SeenEntry,
    origin_uri,
)
from rsnotify_gateway.client import OriginClient
from rsnotify_gateway.event_parser import (
    EventMapping,
    EventParser,
    ServerEvent,
    StatedChange,
    read_event,
)
from rsnotify_gateway.reconciling import usable_uri

_EVENT_STREAM = "text/event-stream"
#: The seconds until a stream that ended is connected to again, if it states none, and the most.
_RECONNECT, _MOST_RECONNECT = 3.0, 60.0
_SECOND = 1_000_000


class EventCursor(Struct, omit_defaults=True):
    """How far a stream was read.

    Args:
        id: The last id.
        began: Whether there was an event.
        gap: The last time at which events may have been missed.
        unusable: The number of events that the mapping does not fit.
    """

    id: str = ""
    began: bool = False
    gap: str | None = None
    unusable: int = 0


_decode = msgspec.json.Decoder(EventCursor).decode


class EventsAdapter:
    """Reads a stream of events.

    Args:
        url: The URL of the stream.
        mapping: Where an event states a change.
        clock: Returns seconds since 1970.
    """

    def __init__(
        self,
        url: str,
        client: OriginClient,
        mapping: EventMapping,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        self._client = client
        self._mapping = mapping
        self._clock = clock
        self._last = EventCursor()
        #: The latest datetime, and the most by which one was earlier, on this connection (µs).
        self._latest = self._disorder = 0

    def terms(self) -> OriginTerms:
        """Return what a stream shows, and what may have been missed."""
        limits = [
            "Only resources with an event since the gateway connected first are listed.",
            "Events that the stream no longer has when the gateway connects again are missed.",
            "While there is no event, nothing is known to be unchanged.",
        ]
        if self._last.gap is not None:
            limits.append(f"Events have no ids, so some may have been missed at {self._last.gap}.")
        if self._disorder:
            seconds = self._disorder / _SECOND
            limits.append(f"Events are out of order, by up to {seconds:,.0f} seconds until now.")
        if self._last.unusable:
            limits.append(f"{self._last.unusable:,} events state no change and are left out.")
        types = ", ".join(self._mapping.deleted)
        seen = f"A deletion is an event of the type {types}." if types else ""
        return OriginTerms(
            "Server-Sent Events", None, seen or "A deletion is never seen.", tuple(limits)
        )

    async def changes(self, cursor: str | None, known: KnownEntries) -> AsyncIterator[OriginBatch]:
        """Yield events as they arrive, over one connection after the other."""
        self._last = EventCursor() if cursor is None else _decode(cursor)
        while True:
            parser = EventParser(self._last.id)
            self._latest = self._disorder = 0
            if self._last.began and not self._last.id:
                gap = format_datetime(datetime.fromtimestamp(self._clock(), UTC))
                self._last = replace(self._last, gap=gap)
            resume = {"Last-Event-ID": self._last.id} if self._last.id else {}
            async with self._client.open(
                self._url, {"Accept": _EVENT_STREAM, **resume}
            ) as response:
                if response.content_type != _EVENT_STREAM:
                    raise Unavailable(self._url, f"it is {response.content_type}, no event stream")
                async for piece in response.content.iter_any():
                    if events := parser.feed(piece):
                        yield self._batch(events)
            if not self._latest:
                raise Unavailable(
                    self._url, "the stream ended without an event that states a change"
                )
            await asyncio.sleep(min(parser.retry or _RECONNECT, _MOST_RECONNECT))

    def _batch(self, events: list[ServerEvent]) -> OriginBatch:
        stated = [read_event(event.data, self._mapping) for event in events]
        known = [change for change in stated if change is not None]
        checked = self._checked(known)
        counting = [change for change in known if change.uri is not None]
        entries = [entry for change in counting if (entry := self._entry(change)) is not None]
        self._last = replace(
            self._last,
            id=events[-1].id,
            began=True,
            unusable=self._last.unusable + len(stated) - len(known) + len(counting) - len(entries),
        )
        # Not the beginning of the check: an event that is read late is not a change of now.
        at = min(self._latest, round(self._clock() * _SECOND))
        return OriginBatch(tuple(entries), msgspec.json.encode(self._last).decode(), checked, at)

    def _checked(self, changes: list[StatedChange]) -> int | None:
        """Return through when the stream was read with some more changes; None if unknown."""
        for change in changes:
            when = to_microseconds(change.when)
            self._latest = max(self._latest, when)
            self._disorder = max(self._disorder, self._latest - when)
        if not changes:
            return None
        now = round(self._clock() * _SECOND)
        return min(self._latest - self._disorder, now)

    def _entry(self, change: StatedChange) -> SeenEntry | MissingEntry | None:
        """Return the entry of a change; None if its URI cannot be used."""
        uri = usable_uri(origin_uri(self._url, change.uri or ""))
        if uri is None:
            return None
        if change.deleted:
            return MissingEntry(uri)
        return SeenEntry(Resource(uri, lastmod=change.when), change.state)
