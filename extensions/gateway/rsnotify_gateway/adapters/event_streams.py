"""Server-Sent Events with JSON data, such as Wikimedia EventStreams.

A mapping in the settings states where an event has the URI of its resource, and the datetime and
type of the change.

- Each event is a change. The granularity depends on the datetimes in the events.
- A deletion is detected only if the mapping lists the types of change that are deletions.
- The set contains the resources with an event since the gateway first connected. A stream has no
  list of all resources to compare with.
- A new connection resumes after the last event (Last-Event-ID). Events that the server no longer
  has are missed undetected. If the events have no ids, every new connection leaves such a gap.
- A silent stream may be quiet or broken. The adapter therefore claims to have checked the stream
  only through the latest event's datetime, minus the longest time by which events on this
  connection were out of order.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from rsnotify.errors import TooLarge, Unavailable
from rsnotify.format.datetimes import (
    Instant,
    format_datetime,
    from_microseconds,
    parse_datetime,
    to_microseconds,
)
from rsnotify.format.model import Resource
from rsnotify_gateway.adapter import (
    KnownEntries,
    MissingEntry,
    OriginAdapter,
    OriginBatch,
    OriginCursor,
    OriginTerms,
    OriginType,
    SeenEntry,
    origin_uri,
)
from rsnotify_gateway.change_detection import usable_uri
from rsnotify_gateway.client import OriginClient
from rsnotify_subscriber.fetching.credentials import without_login
from rsnotify_subscriber.push.websub_callbacks import Callbacks

if TYPE_CHECKING:
    from rsnotify_gateway.config import OriginSettings


_END_OF_LINE = re.compile(rb"\r\n|\n|\r")
_MAX_BYTES = 4_000_000
#: Timestamps of at least this size are in milliseconds, and smaller ones in seconds.
_LEAST_MILLISECONDS = 100_000_000_000

_Pointer = Annotated[
    str,
    Meta(
        pattern="^/([^~]|~[01])*$", description="a JSON Pointer, such as /meta/uri", max_length=1000
    ),
]


class EventMapping(Struct, frozen=True, forbid_unknown_fields=True):
    """JSON Pointers (RFC 6901) to the parts of an event; `[origin.event]` in TOML.

    Args:
        uri: The URI of the resource.
        datetime: The time of the change: a W3C Datetime, or a Unix timestamp in seconds or
            milliseconds.
        change: The type of change.
        deleted: The types of change that are deletions.
        only: Required values, by pointer. Events with other values are ignored.
    """

    uri: _Pointer
    datetime: _Pointer
    change: _Pointer | None = None
    deleted: tuple[str, ...] = ()
    only: dict[_Pointer, str | int | bool] = {}


class ServerEvent(Struct, frozen=True):
    """A server-sent event, with the latest id that the stream has sent."""

    id: str
    data: str


class StatedChange(Struct, frozen=True):
    """The change that an event states. `uri` is None if the event is to be ignored.

    `state` is a hash of the event's data.
    """

    uri: str | None
    when: Instant
    deleted: bool
    state: str


class EventParser:
    """Splits a stream into events. Call `feed` with each piece.

    Attributes:
        last_id: The latest id that the stream has sent.
        retry: How many seconds to wait before reconnecting, if the server states it.
    """

    def __init__(self, last_id: str) -> None:
        self.last_id = last_id
        self.retry: float | None = None
        self._rest = bytearray()
        self._data: list[str] = []
        self._size = 0
        self._is_first = True

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """Parse a piece of the stream, and return the events that it completes.

        Raises:
            TooLarge: An event is too large.
        """
        self._rest += piece
        if len(self._rest) + self._size > _MAX_BYTES:
            raise TooLarge(f"an event is larger than {_MAX_BYTES} bytes")
        if b"\n" not in piece and b"\r" not in piece:
            return []
        *lines, last = _END_OF_LINE.split(bytes(self._rest))
        if not last and self._rest.endswith(b"\r"):  # a line feed may follow
            last = lines.pop() + b"\r"
        self._rest = bytearray(last)
        found = [self._parse_line(line.decode(errors="replace")) for line in lines]
        return [event for event in found if event is not None]

    def _parse_line(self, line: str) -> ServerEvent | None:
        if self._is_first:
            self._is_first, line = False, line.removeprefix("\ufeff")
        if not line:
            data, self._data, self._size = self._data, [], 0
            return ServerEvent(self.last_id, "\n".join(data)) if data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._size += len(line)
        elif name == "id" and "\0" not in value:
            self.last_id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry = int(value[:9]) / 1000
        return None


def read_event(data: str, mapping: EventMapping) -> StatedChange | None:
    """Return the change that an event states; None if it does not match the mapping."""
    try:
        event = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    when = _instant(_value_at(event, mapping.datetime))
    if when is None:
        return None
    is_relevant = all(_value_at(event, pointer) == value for pointer, value in mapping.only.items())
    uri = _value_at(event, mapping.uri) if is_relevant else None
    if is_relevant and not isinstance(uri, str):
        return None
    kind = None if mapping.change is None else _value_at(event, mapping.change)
    state = blake2b(data.encode(), digest_size=16).hexdigest()
    return StatedChange(uri, when, kind in mapping.deleted, state)


def _value_at(value: Any, pointer: str) -> Any:
    """Return the value at a JSON Pointer (RFC 6901), or None if there is none.

    This avoids a dependency on the package jsonpointer.
    """
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and re.fullmatch(r"0|[1-9][0-9]{0,8}", key):
            value = value[int(key)] if int(key) < len(value) else None
        else:
            return None
    return value


def _instant(value: Any) -> Instant | None:
    try:
        if isinstance(value, str):
            return parse_datetime(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return from_microseconds(round(value * (1e3 if value >= _LEAST_MILLISECONDS else 1e6)))
    except (ValueError, OverflowError):
        pass
    return None


_EVENT_STREAM = "text/event-stream"
#: Default and maximum number of seconds before reconnecting to a stream that ended.
_RECONNECT_DELAY, _MAX_RECONNECT_DELAY = 3.0, 60.0
_MICROSECONDS_PER_SECOND = 1_000_000


class EventCursor(OriginCursor, omit_defaults=True):
    """The progress in reading a stream.

    Args:
        id: The latest id that the stream has sent.
        began: Whether any event has been received.
        gap: When events may last have been missed.
        unusable: The number of events that do not match the mapping or have an invalid URI.
    """

    id: str = ""
    began: bool = False
    gap: str | None = None
    unusable: int = 0


class EventsAdapter:
    """Reads a stream of Server-Sent Events."""

    def __init__(self, url: str, client: OriginClient, mapping: EventMapping) -> None:
        self._url = url
        self._client = client
        self._mapping = mapping
        self._last = EventCursor()
        #: The latest datetime on this connection, and the longest time by which another event was
        #: dated before an earlier one (µs).
        self._latest = self._disorder = 0

    def terms(self) -> OriginTerms:
        limits = [
            "Only resources with an event since the gateway first connected are listed.",
            "Events that the stream has dropped before the gateway reconnects are missed.",
            "Without events, a quiet stream cannot be distinguished from a broken one.",
        ]
        if self._last.gap is not None:
            limits.append(f"Events have no ids, so some may have been missed at {self._last.gap}.")
        if self._disorder:
            seconds = self._disorder / _MICROSECONDS_PER_SECOND
            limits.append(f"Events were out of order by up to {seconds:,.0f} seconds.")
        if self._last.unusable:
            limits.append(f"Skipped events that state no change: {self._last.unusable:,}.")
        types = ", ".join(self._mapping.deleted)
        deletions = f"Events of the type {types} are deletions." if types else ""
        return OriginTerms(
            "Server-Sent Events", None, deletions or "Deletions are not detected.", tuple(limits)
        )

    async def changes(self, cursor: str | None, known: KnownEntries) -> AsyncIterator[OriginBatch]:
        """Yield events as they arrive. Reconnect whenever the stream ends."""
        self._last = EventCursor.decoded(cursor)
        while True:
            parser = EventParser(self._last.id)
            self._latest = self._disorder = 0
            if self._last.began and not self._last.id:
                gap = format_datetime(datetime.fromtimestamp(time.time(), UTC))
                self._last = replace(self._last, gap=gap)
            resume = {"Last-Event-ID": self._last.id} if self._last.id else {}
            async with self._client.open(
                self._url, {"Accept": _EVENT_STREAM, **resume}
            ) as response:
                if response.content_type != _EVENT_STREAM:
                    raise Unavailable(
                        self._url, f"it is {response.content_type}, not an event stream"
                    )
                async for piece in response.content.iter_any():
                    if events := parser.feed(piece):
                        yield self._batch(events)
            if not self._latest:
                raise Unavailable(
                    self._url, "the stream ended without an event that states a change"
                )
            await asyncio.sleep(min(parser.retry or _RECONNECT_DELAY, _MAX_RECONNECT_DELAY))

    def _batch(self, events: list[ServerEvent]) -> OriginBatch:
        stated = [read_event(event.data, self._mapping) for event in events]
        known = [change for change in stated if change is not None]
        checked = self._checked(known)
        relevant = [change for change in known if change.uri is not None]
        entries = [entry for change in relevant if (entry := self._entry(change)) is not None]
        self._last = replace(
            self._last,
            id=events[-1].id,
            began=True,
            unusable=self._last.unusable + len(stated) - len(known) + len(relevant) - len(entries),
        )
        # Not the start of the check, because an event may be read long after it happened.
        at = min(self._latest, round(time.time() * _MICROSECONDS_PER_SECOND))
        return OriginBatch(tuple(entries), self._last.encoded(), checked, at)

    def _checked(self, changes: list[StatedChange]) -> int | None:
        """Process changes, and return the instant (µs) through which the stream has been read.

        Return None if there are no changes.
        """
        now = round(time.time() * _MICROSECONDS_PER_SECOND)
        for change in changes:
            # A single event may be dated far in the future.
            when = min(to_microseconds(change.when), now)
            self._latest = max(self._latest, when)
            self._disorder = max(self._disorder, self._latest - when)
        if not changes:
            return None
        return self._latest - self._disorder

    def _entry(self, change: StatedChange) -> SeenEntry | MissingEntry | None:
        """Return the entry for a change; None if its URI is invalid."""
        uri = usable_uri(origin_uri(self._url, change.uri or ""))
        if uri is None:
            return None
        if change.deleted:
            return MissingEntry(uri)
        return SeenEntry(Resource(uri, lastmod=change.when), change.state)


def _open(origin: OriginSettings, client: OriginClient, callbacks: Callbacks) -> OriginAdapter:
    assert origin.event is not None, "it was checked"
    return EventsAdapter(without_login(origin.url), client, origin.event)


EVENTS = OriginType(_open, is_stream=True)
