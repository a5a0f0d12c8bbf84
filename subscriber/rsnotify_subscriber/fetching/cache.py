"""Documents that are kept in memory, so that a poll which finds nothing new costs a 304.

Their memory is measured in entries; an entry with inline content counts as several.
"""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Struct

from rsnotify.format.model import Document

#: A document with more entries is not kept, but read again each time.
_LARGEST = 10_000
#: The characters of content in a link that need about as much memory as an entry.
_ENTRY = 2_000


class CachedDocument(Struct, frozen=True):
    """A document as it was last received, and the header field of a conditional request for it."""

    document: Document
    condition: tuple[str, str]
    entries: int


class DocumentCache:
    """The documents of one subscriber, or of several, by URI; the least recently used are removed.

    Args:
        documents: How many are kept.
        entries: How many entries they may have together.
    """

    def __init__(self, documents: int = 4, entries: int = 4 * _LARGEST) -> None:
        self._most_documents = documents
        self._most_entries = entries
        self._kept: OrderedDict[str, CachedDocument] = OrderedDict()
        self._entries = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, uri: str) -> CachedDocument | None:
        if uri in self._kept:
            self._kept.move_to_end(uri)
        return self._kept.get(uri)

    def put(self, uri: str, document: Document, condition: tuple[str, str] | None) -> None:
        """Keep a document in place of the previous one; without a condition, nothing is kept."""
        before = self._kept.pop(uri, None)
        if before is not None:
            self._entries -= before.entries
        entries = _weight(document)
        if condition is not None and entries <= min(_LARGEST, self._most_entries):
            self._kept[uri] = CachedDocument(document, condition, entries)
            self._entries += entries
        while len(self._kept) > self._most_documents or self._entries > self._most_entries:
            _, oldest = self._kept.popitem(last=False)
            self._entries -= oldest.entries


def _weight(document: Document) -> int:
    content = sum(len(link.href) for one in document.resources for link in one.links)
    return len(document.resources) + content // _ENTRY
