"""The Source and set of resources to which a state belongs."""

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
    """A document that describes a Source, as it was last received.

    Args:
        uri: The URI that was requested.
        document: The document.
        condition: The header field for a conditional request for it, if there is one.
        sent: When the document was sent, by the Source's clock.
    """

    uri: str
    document: Document
    condition: tuple[str, str] | None = None
    sent: Instant | None = None


class DescriptionMemory(Struct, frozen=True):
    """The documents stored between runs, and the targets of permanent redirects by URI."""

    documents: tuple[StoredDescription, ...] = ()
    moved: dict[str, str] = {}


class KnownLinks(Struct, frozen=True):
    """The known facts about the links with `rel="up"` in the documents of one set.

    Args:
        places: Targets, without scheme, that were accepted although they are not the Capability
            List.
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
        base: The URI that the root of a mirror stands for.
        offer: The last known offer of the Source.
        selection: The part of the set that is followed.
        prefer: Media types of the alternates that the copy holds (core §14.3).
        place: The place where a handler holds the resources, if it has one.
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
    """Return whether a set is now described elsewhere, so that its resources may have new URIs.

    Without a list of all resources, they cannot be compared. T is then kept, so that gaps show.
    """
    return now.capability_list not in (None, before.capability_list) and bool(
        resource_documents(now)
    )


def incomparable(identity: Identity) -> str:
    """Return a sentence saying why the copy is not the Source's whole set, or '' if it is."""
    if identity.selection != Selection():
        return "only a selection of the set is followed"
    return "alternates are held in place of resources" if identity.prefer else ""


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
