"""What the views have in common: a page for each closed Change List, and documents about all.

A page is a line with its head, an entry for each change, and an end. Its entries never change; its
head may, as other pages come and go.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from rsnotify.format.model import Resource
from rsnotify_publisher.journal import FinishedDocument
from rsnotify_publisher.source_documents import SourceDocuments

Chunks = list[bytes]


class View(ABC):
    """The changes of a Source in another format.

    Args:
        documents: Of the Source.
        age: For how many microseconds the retention policy keeps every change; None if it does
            not say.
    """

    #: The extension of the names of its documents.
    suffix: str
    #: The names of the documents that are rewritten.
    live: tuple[str, ...]
    _between = b"\n"
    _end = b"\n"

    def __init__(self, documents: SourceDocuments, age: int | None) -> None:
        self._documents = documents
        self._age = age

    def name(self, closed: FinishedDocument) -> str:
        """Return the name of the page with the changes of a closed Change List."""
        return closed.files[0].partition(".")[0] + self.suffix

    @abstractmethod
    def entry(self, change: Resource) -> bytes:
        """Return what a page says about a change."""

    @abstractmethod
    def head(self, name: str, before: str | None, after: str | None) -> bytes:
        """Return the first line of a page, which may link to the pages before and after it."""

    @abstractmethod
    def documents(
        self, closed: Sequence[FinishedDocument], begin: int, entries: Sequence[bytes]
    ) -> dict[str, Chunks]:
        """Return what is rewritten, in this order; nothing while there is nothing to show.

        Args:
            closed: All closed Change Lists, oldest first.
            begin: Where the open Change List begins (µs).
            entries: The entries of its changes.
        """

    def page(self, head: bytes, entries: Sequence[bytes]) -> Chunks:
        return [head, self._between.join(entries), self._end]
