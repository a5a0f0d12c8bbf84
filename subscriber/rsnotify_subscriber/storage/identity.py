"""The Source and the set of resources that a state belongs to."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Document
from rsnotify.format.offer import Offer
from rsnotify.runtime.reasons import reason_of
from rsnotify.selection import Selection
from rsnotify.sync.pull import resource_documents

T = TypeVar("T")


class StoredDescription(Struct, frozen=True):
    """A description of a Source, as last received.

    Args:
        uri: The requested URI.
        document: The document.
        condition: The header field for a conditional request, or None.
        sent: When the document was sent, by the Source's clock.
    """

    uri: str
    document: Document
    condition: tuple[str, str] | None = None
    sent: Instant | None = None


class DescriptionMemory(Struct, frozen=True):
    """The descriptions stored between runs, and the targets of permanent redirects, by URI."""

    documents: tuple[StoredDescription, ...] = ()
    moved: dict[str, str] = {}


class KnownLinks(Struct, frozen=True):
    """Accepted links with `rel="up"` in the documents of one set.

    Args:
        places: Accepted targets, without scheme, other than the Capability List.
        has_resources: Whether a document that lists all resources has been used.
        has_changes: Whether a document that lists changes has been used.
    """

    places: tuple[str, ...] = ()
    has_resources: bool = False
    has_changes: bool = False


class Identity(Struct, frozen=True):
    """The Source and set of resources of a state, determined by the first run.

    Args:
        url: The URL that the user gave.
        base: The URI that corresponds to the root of a mirror.
        offer: The last known offer of the Source.
        selection: The followed part of the set.
        prefer: The media types of the alternates in the copy (core §14.3).
        place: The place where a `LocatedHandler` keeps the resources.
        memory: The documents from which the offer was read, for conditional requests.
    """

    url: str
    base: str
    offer: Offer
    selection: Selection = Selection()
    prefer: tuple[str, ...] = ()
    place: str = ""
    memory: DescriptionMemory = DescriptionMemory()


def has_moved(before: Offer, now: Offer) -> bool:
    """Return whether a set has another Capability List, so that its resources may have new URIs.

    False if the new offer has no list of all resources, because nothing can be compared then. T is
    kept, so that gaps are detected.
    """
    return now.capability_list not in (None, before.capability_list) and bool(
        resource_documents(now)
    )


def incomparable(identity: Identity) -> str:
    """Return why the copy differs from the whole set on purpose, as a sentence, or ''."""
    if identity.selection != Selection():
        return "only a selection of the set is followed"
    return "the copy has alternates instead of resources" if identity.prefer else ""


def read_identity(folder: Path) -> Identity | None:
    """Read the identity of a state in a folder, without locking or changing it."""
    return read_fact(folder, "identity", Identity)


def read_fact(folder: Path, name: str, kind: type[T]) -> T | None:
    """Read one fact of a state in a folder, without locking or changing it."""
    try:
        rows = list(_read(folder, "SELECT value FROM facts WHERE name = ?", (name,)))
        return msgspec.json.decode(rows[0][0], type=kind) if rows else None
    except msgspec.DecodeError as error:
        raise StorageError(f"{folder}: {error}") from error


def read_held(folder: Path) -> Iterator[str]:
    """Yield the URIs of the resources in a state, without locking or changing it."""
    query = "SELECT uri FROM resources WHERE change != 'deleted'"
    return (uri for (uri,) in _read(folder, query))


def _read(folder: Path, query: str, parameters: Sequence[str] = ()) -> Iterator[tuple[Any, ...]]:
    path = folder / "state.sqlite"
    if not path.exists():
        return
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        with closing(connection):
            yield from connection.execute(query, parameters)
    except (OSError, sqlite3.Error) as error:
        raise StorageError(f"{path}: {reason_of(error)}") from error
