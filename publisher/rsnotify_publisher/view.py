"""The interface of a view: the changes of a Source in another format.

A view has a page for each closed Change List, and documents about all of them, which are rewritten
whenever they differ. A page is a line with its head, an entry for each change, and an end. Its
entries never change; its head may, as other pages come and go.

Installed packages offer views as entry points of the group `rsnotify.views`; the name is what
`Options.views` contains.
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
        uri: Returns the URI of a document by its name.
        age: For how many microseconds the retention policy keeps every change; None if it does
            not say.
    """

    #: The extension of the names of its documents, with a dot, which no other view uses.
    suffix: ClassVar[str]
    #: The media type of its documents.
    media_type: ClassVar[str]
    #: The names of the documents that are rewritten. They begin with `resourcesync/`.
    live: ClassVar[tuple[str, ...]]
    #: The one of them that leads to all others; the Change List links to it.
    root: ClassVar[str]
    #: Whether the head of a page may change, so that caches have to revalidate it.
    heads_change: ClassVar[bool] = False
    #: The text between two entries of a page, and at its end.
    between: ClassVar[bytes] = b"\n"
    end: ClassVar[bytes] = b"\n"

    def __init__(self, uri: Callable[[str], str], age: int | None) -> None:
        self.uri = uri
        self.age = age

    def name(self, closed: FinishedDocument) -> str:
        """Return the name of the page with the changes of a closed Change List."""
        return closed.files[0].partition(".")[0] + self.suffix

    def resume(self, page: bytes, end: int) -> None:  # noqa: B027 - most views need nothing
        """Note, before the next entry, what the page of the changes until an instant (µs) says."""

    def remark(self, page: bytes, entries: Sequence[bytes], end: int) -> bytes:
        """Return what `resume` needs to find at the end of a page, besides its entries.

        Args:
            page: The page before; empty if there is none.
            entries: Those of the page.
            end: The end of its interval (µs).
        """
        return b""

    @abstractmethod
    def entry(self, change: Resource) -> bytes:
        """Return what a page says about a change; the changes are given in order."""

    @abstractmethod
    def head(self, name: str, before: str | None, after: str | None) -> bytes:
        """Return the first line of a page, which may link to the pages before and after it."""

    @abstractmethod
    def documents(
        self, closed: Sequence[FinishedDocument], begin: int, entries: Sequence[bytes]
    ) -> dict[str, Chunks]:
        """Return the documents to rewrite, in this order; none while there is nothing to show.

        Args:
            closed: All closed Change Lists, oldest first.
            begin: Where the open Change List begins (µs).
            entries: The entries of its changes.
        """

    def page(self, head: bytes, entries: Sequence[bytes]) -> Chunks:
        """Return a page from its head and its entries."""
        return [head, self.between.join(entries), self.end]


def check_views(names: Iterable[str], *table: str | int) -> None:
    """Raise WrongSetting if a view is not installed; `table` is the path of the options."""
    for name in names:
        if name not in offered("views"):
            installed = ", ".join(sorted(offered("views"))) or "none"
            reason = f"the view {name!r} is not installed; installed are: {installed}"
            raise WrongSetting((*table, "views"), reason)


def load_views(names: Iterable[str]) -> dict[str, type[View]]:
    """Return the types of views by name; MissingExtension if one cannot be imported."""
    return {name: load_extension("views", name, f"the view {name!r}") for name in names}
