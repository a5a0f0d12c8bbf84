"""The documents that describe a Source, as the last run received them."""

from __future__ import annotations

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Document


class StoredDescription(Struct, frozen=True):
    """A document as it was last received.

    Args:
        uri: The URI that was requested.
        document: The document.
        condition: The header field of a conditional request for it, if there is one.
        sent: When it was sent, by the clock of the Source.
    """

    uri: str
    document: Document
    condition: tuple[str, str] | None = None
    sent: Instant | None = None


class DescriptionMemory(Struct, frozen=True):
    """The documents and redirects that are stored between runs.

    Args:
        documents: The documents.
        moved: The targets of permanent redirects, by URI.
    """

    documents: tuple[StoredDescription, ...] = ()
    moved: dict[str, str] = {}
