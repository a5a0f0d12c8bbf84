"""Parses Server-Sent Events (WHATWG HTML §9.2.6), and finds changes in their JSON."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
from jsonpointer import resolve_pointer
from msgspec import Meta, Struct

from rsnotify.errors import TooLarge
from rsnotify.format.datetimes import Instant, from_microseconds, parse_datetime

_END_OF_LINE = re.compile(rb"\r\n|\n|\r")
_MOST_BYTES = 4_000_000
#: Numbers from here on are milliseconds since 1970, and smaller ones seconds.
_MILLISECONDS = 100_000_000_000

_Pointer = Annotated[
    str,
    Meta(
        pattern="^/([^~]|~[01])*$", description="a JSON Pointer, such as /meta/uri", max_length=1000
    ),
]


class EventMapping(Struct, frozen=True, forbid_unknown_fields=True):
    """Where an event states a change: JSON Pointers (RFC 6901), `[origin.event]` in TOML.

    Args:
        uri: The URI of the resource.
        datetime: The time of the change: a W3C Datetime, or seconds or milliseconds since 1970.
        change: The type of change.
        deleted: The types that are deletions.
        only: Pointers, and what is there in the events that count.
    """

    uri: _Pointer
    datetime: _Pointer
    change: _Pointer | None = None
    deleted: tuple[str, ...] = ()
    only: dict[_Pointer, str | int | bool] = {}


class ServerEvent(Struct, frozen=True):
    """An event.

    Args:
        id: The last id that the stream has stated, with this event or before.
    """

    id: str
    data: str


class StatedChange(Struct, frozen=True):
    """What an event states.

    Args:
        uri: The URI of the resource; None if the event does not count.
        state: A text that differs for each event.
    """

    uri: str | None
    when: Instant
    deleted: bool
    state: str


class EventParser:
    """Splits a stream into events; `feed` it piece by piece.

    Attributes:
        last_id: The last id.
        retry: The seconds after which the server wants to be connected to again, if it states any.
    """

    def __init__(self, last_id: str) -> None:
        self.last_id = last_id
        self.retry: float | None = None
        self._rest = bytearray()
        self._data: list[str] = []
        self._size = 0
        self._is_first = True

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """Return the events that end in a piece.

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
    """Return what an event states; None if it is not what the mapping describes."""
    try:
        event = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    when = _instant(resolve_pointer(event, mapping.datetime, None))
    if when is None:
        return None
    counts = all(resolve_pointer(event, at, None) == is_ for at, is_ in mapping.only.items())
    uri = resolve_pointer(event, mapping.uri, None) if counts else None
    if counts and not isinstance(uri, str):
        return None
    kind = None if mapping.change is None else resolve_pointer(event, mapping.change, None)
    state = blake2b(data.encode(), digest_size=16).hexdigest()
    return StatedChange(uri, when, kind in mapping.deleted, state)


def _instant(value: Any) -> Instant | None:
    try:
        if isinstance(value, str):
            return parse_datetime(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return from_microseconds(round(value * (1e3 if value >= _MILLISECONDS else 1e6)))
    except (ValueError, OverflowError):
        pass
    return None
