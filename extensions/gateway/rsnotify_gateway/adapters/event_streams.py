"""Server-Sent Events with JSON data, such as Wikimedia EventStreams.

A mapping in the configuration states where an event has the URI of its resource, and the datetime
and type of the change.

- Each event is a change. The granularity depends on the datetimes in the events.
- A deletion is detected if the mapping names the types of change that are deletions, and never
  otherwise.
- The set contains the resources with an event since the gateway first connected. A stream has no
  list of all resources, so nothing can be compared with it.
- A connection resumes after the last event (Last-Event-ID). Events that the server no longer has
  are missed, which cannot be detected. If the events have no ids, every new connection leaves such
  a gap.
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
from rsnotify_gateway.client import OriginClient
from rsnotify_gateway.reconciling import usable_uri
from rsnotify_subscriber.fetching.credentials import without_login
from rsnotify_subscriber.push.websub_callbacks import Callbacks

if TYPE_CHECKING:
    from rsnotify_gateway.config import OriginSettings


_END_OF_LINE = re.compile(rb"\r\n|\n|\r")
_MOST_BYTES = 4_000_000
#: Numbers from here on are milliseconds since 1970; smaller numbers are seconds.
_MILLISECONDS = 100_000_000_000

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
        datetime: The time of the change: a W3C Datetime, or seconds or milliseconds since 1970.
        change: The type of change.
        deleted: The types of change that are deletions.
        only: The required values, by pointer. An event with any other value does not count.
    """

    uri: _Pointer
    datetime: _Pointer
    change: _Pointer | None = None
    deleted: tuple[str, ...] = ()
    only: dict[_Pointer, str | int | bool] = {}


class ServerEvent(Struct, frozen=True):
    """A server-sent event, with the last id that the stream has sent with it or earlier."""

    id: str
    data: str


class StatedChange(Struct, frozen=True):
    """The change that an event states, with a hash of its data.

    `uri` is None if the event does not count.
    """

    uri: str | None
    when: Instant
    deleted: bool
    state: str


class EventParser:
    """Splits a stream into events. Call `feed` with each piece.

    Attributes:
        last_id: The last id that the stream has sent.
        retry: The seconds to wait before reconnecting, if the server states them.
    """

    def __init__(self, last_id: str) -> None:
        self.last_id = last_id
        self.retry: float | None = None
        self._rest = bytearray()
        self._data: list[str] = []
        self._size = 0
        self._is_first = True

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """Parse a piece of the stream, and return the events that end in it.

        Raises:
            TooLarge: An event is too large.
        """
        self._rest += piece
        if len(self._rest) + self._size > _MOST_BYTES:
            raise TooLarge(f"an event is larger than {_MOST_BYTES} bytes")
        if b"\n" not in piece and b"\r" not in piece:
            return []
        *lines, last = _END_OF_LINE.split(bytes(self._rest))
        if not last and self._rest.endswith(b"\r"):  # a line feed may follow
            last = lines.pop() + b"\r"
        self._rest = bytearray(last)
        found = [self._line(line.decode(errors="replace")) for line in lines]
        return [event for event in found if event is not None]

    def _line(self, line: str) -> ServerEvent | None:
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
    """Return the change that an event states; None if the event does not fit the mapping."""
    try:
        event = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    when = _instant(_at(event, mapping.datetime))
    if when is None:
        return None
    counts = all(_at(event, at) == is_ for at, is_ in mapping.only.items())
    uri = _at(event, mapping.uri) if counts else None
    if counts and not isinstance(uri, str):
        return None
    kind = None if mapping.change is None else _at(event, mapping.change)
    state = blake2b(data.encode(), digest_size=16).hexdigest()
    return StatedChange(uri, when, kind in mapping.deleted, state)


def _at(value: Any, pointer: str) -> Any:
    """Return the value at a JSON Pointer (RFC 6901), or None.

    The package jsonpointer also does this, but these lines spare every gateway that dependency.
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
            return from_microseconds(round(value * (1e3 if value >= _MILLISECONDS else 1e6)))
    except (ValueError, OverflowError):
        pass
    return None


_EVENT_STREAM = "text/event-stream"
#: Default and maximum number of seconds before reconnecting to a stream that ended.
_RECONNECT, _MOST_RECONNECT = 3.0, 60.0
_SECOND = 1_000_000


class EventCursor(OriginCursor, omit_defaults=True):
    """The progress in reading a stream.

    Args:
        id: The last id that the stream has sent.
        began: Whether there has been an event.
        gap: The last time at which events may have been missed.
        unusable: The number of events that do not fit the mapping, or whose URI is unusable.
    """

    id: str = ""
    began: bool = False
    gap: str | None = None
    unusable: int = 0


class EventsAdapter:
    """Reads a stream of events."""

    def __init__(self, url: str, client: OriginClient, mapping: EventMapping) -> None:
        self._url = url
        self._client = client
        self._mapping = mapping
        self._last = EventCursor()
        #: The latest datetime on this connection, and the greatest lag behind it of another (µs).
        self._latest = self._disorder = 0

    def terms(self) -> OriginTerms:
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
        # Not the beginning of the check, because an event may be read long after it happened.
        at = min(self._latest, round(time.time() * _SECOND))
        return OriginBatch(tuple(entries), self._last.encoded(), checked, at)

    def _checked(self, changes: list[StatedChange]) -> int | None:
        """Process changes, and return the instant (µs) through which the stream has been read.

        Return None if there are no changes.
        """
        now = round(time.time() * _SECOND)
        for change in changes:
            # A single event may have a datetime that is far in the future.
            when = min(to_microseconds(change.when), now)
            self._latest = max(self._latest, when)
            self._disorder = max(self._disorder, self._latest - when)
        if not changes:
            return None
        return self._latest - self._disorder

    def _entry(self, change: StatedChange) -> SeenEntry | MissingEntry | None:
        """Return the entry for a change; None if its URI is unusable."""
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
