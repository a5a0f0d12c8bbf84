"""A selection, and fragments of which some changes are in it."""

from __future__ import annotations

from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.writer import write_document
from tests.hub.helpers import at

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
