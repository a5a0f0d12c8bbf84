"""The interface of views: the changes of a Source in another format.

A view has a page for each closed Change List, and documents about all pages. These documents are
rewritten when their contents change. A page consists of a line with its head, an entry for each
change, and an end. The entries never change. The head may change when other pages are added or
dropped.

Packages offer views as entry points in the group `rsnotify.views`. The name of the entry point is
the name in `Options.views`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from rsnotify.format.model import Resource
from rsnotify.runtime.extensions import load_extension, offered
from rsnotify.runtime.settings import WrongSetting
from rsnotify_publisher.journal import FinishedDocument

#: A document, in pieces.
Chunks = list[bytes]


class View(ABC):
    """The changes of a Source in another format.

    Args:
        uri: Returns the URI of the document with a given name.
        age: The number of microseconds for which the retention policy keeps every change; None if
            it does not specify an age.
    """

    #: The file name extension of the view's documents, with a dot. No other view may use it.
    suffix: ClassVar[str]
    #: The media type of the view's documents.
    media_type: ClassVar[str]
    #: The names of the documents that are rewritten. They begin with `resourcesync/`.
    live: ClassVar[tuple[str, ...]]
    #: The document in `live` that links to all others. The Change List links to it.
    root: ClassVar[str]
    #: Whether the head of a page may change, so that caches must revalidate the page.
    heads_change: ClassVar[bool] = False
    #: The bytes between two entries of a page, and at its end.
    between: ClassVar[bytes] = b"\n"
    end: ClassVar[bytes] = b"\n"

    def __init__(self, uri: Callable[[str], str], age: int | None) -> None:
        self.uri = uri
        self.age = age

    def name(self, closed: FinishedDocument) -> str:
        """Return the name of the page with the changes of a closed Change List."""
        return closed.files[0].partition(".")[0] + self.suffix

    def resume(self, page: bytes, end: int) -> None:  # noqa: B027 - most views need nothing
        """Restore the view's state from the last page, before the next call of `entry`.

        Args:
            page: The page with the preceding changes.
            end: The end of the interval that the page covers (µs).
        """

    def remark(self, page: bytes, entries: Sequence[bytes], end: int) -> bytes:
        """Return data to append to a page after its entries, for `resume`.

        Args:
            page: The previous page, or empty if there is none.
            entries: The entries of the page.
            end: The end of the interval that the page covers (µs).
        """
        return b""

    @abstractmethod
    def entry(self, change: Resource) -> bytes:
        """Render one change as a page entry. Called in chronological order."""

    @abstractmethod
    def head(self, name: str, before: str | None, after: str | None) -> bytes:
        """Return the first line of a page, which may link to the previous and next pages."""

    @abstractmethod
    def documents(
        self, closed: Sequence[FinishedDocument], begin: int, entries: Sequence[bytes]
    ) -> dict[str, Chunks]:
        """Return the contents of the documents to rewrite, keyed by name, in writing order.

        Return an empty dictionary while there is nothing to show.

        Args:
            closed: All closed Change Lists, oldest first.
            begin: The instant at which the open Change List begins (µs).
            entries: The entries of the changes in the open Change List.
        """

    def page(self, head: bytes, entries: Sequence[bytes]) -> Chunks:
        """Return a page from its head and its entries."""
        return [head, self.between.join(entries), self.end]


def check_views(names: Iterable[str], *table: str | int) -> None:
    """Raise WrongSetting if a view is not installed. `table` is where the options are."""
    for name in names:
        if name not in offered("views"):
            installed = ", ".join(sorted(offered("views"))) or "none"
            reason = f"the view {name!r} is not installed; installed: {installed}"
            raise WrongSetting((*table, "views"), reason)


def load_views(names: Iterable[str]) -> dict[str, type[View]]:
    """Return the views' classes by name. Raises MissingExtension if one cannot be imported."""
    return {name: load_extension("views", name, f"the view {name!r}") for name in names}
