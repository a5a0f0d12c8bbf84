"""The Source and the set of resources that a state belongs to."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from rsnotify.errors import StorageError
from rsnotify.format.offer import Offer
from rsnotify.selection.selection import Selection
from rsnotify.sync.fallback_order import resource_documents
from rsnotify_subscriber.storage.description_memory import DescriptionMemory
from rsnotify_subscriber.storage.sqlite import read_fact


class Identity(Struct, frozen=True):
    """The Source and set of resources of a state, fixed at the first run.

    Args:
        url: The URL that the user gave.
        base: The URI that the root of a mirror stands for.
        offer: The last known offer of the Source.
        selection: The part of the set that is followed.
        prefer: Media types of which alternates are held (core §14.3).
        place: The place in which a handler holds the resources, if it has one.
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
    """Return whether a set is described elsewhere, so that its resources may have new URIs.

    Without a list of all resources they cannot be compared, and T is kept, so that gaps show.
    """
    return now.capability_list not in (None, before.capability_list) and bool(
        resource_documents(now)
    )


def incomparable(identity: Identity) -> str:
    """Return in a sentence why the copy is not the Source's whole set; empty if it is."""
    if identity.selection != Selection():
        return "only a selection of the set is followed"
    return "alternates are held in place of resources" if identity.prefer else ""


def read_identity(folder: Path) -> Identity | None:
    """Read the identity of a state in a folder, without locking or changing it.

    Raises:
        StorageError: There is a state, but it cannot be read.
    """
    value = read_fact(folder, "identity")
    try:
        return None if value is None else msgspec.json.decode(value, type=Identity)
    except msgspec.DecodeError as error:
        raise StorageError(f"{folder}: {error}") from error
