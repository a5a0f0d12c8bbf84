"""Views: the changes of a Source in further formats. Here is their interface, and their files.

A view has a page for each closed Change List, which is written when the list is closed, and
documents about all, which are written when the open list is. A page is a line with its head, an
entry for each change, and an end. Its entries never change; its head may, as other pages come and
go.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import entry_points

from msgspec.structs import replace

from rsnotify.format.datetimes import to_microseconds
from rsnotify.format.model import Capability, Resource
from rsnotify_publisher.documents.change_list_files import changes_in
from rsnotify_publisher.files import remove, write_atomically
from rsnotify_publisher.journal import FinishedDocument, Journal, Recorder
from rsnotify_publisher.source_context import SourceContext
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


def installed_views() -> dict[str, type[View]]:
    """Return the views that installed packages offer, by name."""
    return {point.name: point.load() for point in entry_points(group="rsnotify.views")}


class ViewDocuments:
    """Keeps the documents of all views; each page belongs to the closed Change List it shows.

    So a page is kept, discarded and deleted together with that list.
    """

    def __init__(self, source: SourceContext, recorder: Recorder) -> None:
        self._folder = source.documents_folder
        self._recorder = recorder
        kinds = installed_views()
        self._views = [
            kinds[name](source.documents, source.retention.age) for name in source.options.views
        ]
        unwanted = kinds.keys() - set(source.options.views)
        self._unwanted = [name for kind in unwanted for name in kinds[kind].live]
        self._begin = 0
        self._datetimes: list[int] = []
        self._entries: list[Chunks] = [[] for _ in self._views]
        self._closed: list[FinishedDocument] = []
        # Pages whose heads are known to name the pages before and after them.
        self._linked: set[tuple[str | None, str | None, str | None]] = set()
        self._written: dict[str, Chunks] = {}
        #: Whether all documents show the closed Change Lists that there are; else call `link`.
        self.is_linked = False

    def prepare(self, journal: Journal) -> None:
        """Write the pages that are missing, and discard what the options no longer offer."""
        remove(self._folder, self._unwanted)
        self._closed = journal.finished(Capability.CHANGE_LIST)
        for document in self._closed:
            pages = [view.name(document) for view in self._views]
            for view, page in zip(self._views, pages, strict=True):
                if not (self._folder / page).exists():
                    entries = list(map(view.entry, changes_in(self._folder, document)))
                    self._write(page, view.page(view.head(page, None, None), entries))
            files = (document.files[0], *pages)
            if files != document.files:
                self._recorder.run(self._replacement(document, files))

    def _replacement(
        self, document: FinishedDocument, files: tuple[str, ...]
    ) -> Callable[[Journal], None]:
        size = sum((self._folder / name).stat().st_size for name in files)

        def note(journal: Journal) -> None:
            journal.discard(set(document.files).difference(files))
            journal.put(replace(document, files=files, size=size))

        return note

    def follow(self, begin: int, changes: Iterable[Resource]) -> None:
        """Append the next changes, and drop those that the open Change List no longer has."""
        if not self._views:
            return
        gone = bisect_right(self._datetimes, begin)
        del self._datetimes[:gone]
        self._begin = begin
        for change in changes:
            assert change.datetime is not None
            self._datetimes.append(to_microseconds(change.datetime))
            for view, entries in zip(self._views, self._entries, strict=True):
                entries.append(view.entry(change))
        for entries in self._entries:
            del entries[:gone]

    def close(self, document: FinishedDocument) -> FinishedDocument:
        """Write the pages of a Change List that is being closed; return it with them."""
        if not self._views:
            return document
        self.is_linked = False
        count = bisect_right(self._datetimes, document.end)
        files, size = list(document.files), document.size
        for view, entries in zip(self._views, self._entries, strict=True):
            before = view.name(self._closed[-1]) if self._closed else None
            page = view.name(document)
            head = view.head(page, before, None)
            size += self._write(page, view.page(head, entries[:count]))
            files.append(page)
        self._closed.append(document)  # until `link` reads what is in the journal
        return replace(document, files=tuple(files), size=size)

    def publish(self) -> None:
        """Write the documents that show the open Change List, where they differ."""
        for view, entries in zip(self._views, self._entries, strict=True):
            documents = view.documents(self._closed, self._begin, entries)
            for name, chunks in documents.items():
                if self._written.get(name) != chunks:
                    self._write(name, chunks)
                    self._written[name] = chunks
            if not documents:
                remove(self._folder, view.live)

    def link(self, journal: Journal) -> None:
        """Link the pages to each other, after Change Lists were closed or dropped; then publish."""
        if not self._views:
            return
        self.is_linked = False  # in case that this fails
        self._closed = journal.finished(Capability.CHANGE_LIST)
        linked = set()
        for view in self._views:
            names = [None, *map(view.name, self._closed), None]
            links = set(zip(names, names[1:], names[2:], strict=False))
            for before, name, after in links - self._linked:
                assert name is not None
                self._replace_head(name, view.head(name, before, after))
            linked |= links
        self._linked = linked
        self.publish()
        self.is_linked = True

    def _replace_head(self, name: str, head: bytes) -> None:
        with open(self._folder / name, "rb") as file:
            if file.readline() == head:
                return
            entries = file.read()
        self._write(name, [head, entries])

    def _write(self, name: str, chunks: Chunks) -> int:
        return write_atomically(self._folder / name, chunks)
