"""A selection, and fragments of which some changes are in it."""

from __future__ import annotations

from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.reader import read_document
from rsnotify.format.writer import write_document
from tests.hub.helpers import START, at, seconds_of

BASE = "https://source.example/data/"
MAPS = {"prefixes": [BASE + "maps/"]}


def named(from_: int, **entries: int) -> bytes:
    """A fragment of changes by name, `maps_` standing for `maps/`."""
    found = [
        Resource(BASE + name.replace("_", "/"), change=ChangeType.UPDATED, datetime=at(second))
        for name, second in entries.items()
    ]
    until = max(entries.values())
    return write_document(
        Document(Capability.CHANGE_NOTIFICATION, tuple(found), from_=at(from_), until=at(until))
    )


def span(body: bytes | str) -> tuple[float, float, list[float]]:
    """Return the interval of a fragment and the datetimes of its changes, in seconds."""
    found = read_document(body.encode() if isinstance(body, str) else body)
    begin, until = ((each - START).total_seconds() for each in (found.from_, found.until))
    return begin, until, seconds_of(body)
