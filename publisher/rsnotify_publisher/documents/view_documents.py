"""Writes the views: pages when a Change List is closed, other documents with the open list."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from msgspec import json
from msgspec.structs import replace

from rsnotify.format.datetimes import to_microseconds
from rsnotify.format.model import Capability, Resource
from rsnotify.runtime.extensions import MissingExtension, offered
from rsnotify_publisher.documents.open_change_list import changes_in
from rsnotify_publisher.files import remove, write_atomically
from rsnotify_publisher.journal import FinishedDocument, Journal, Recorder
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.view import Chunks, View, load_views

#: The name under which the journal stores a JSON array with the names of all documents that views
#: have ever rewritten, in its table for readers of other logs.
_POSITION = "views"


def _known_documents(journal: Journal) -> set[str]:
    """Return the names of all documents that views have ever rewritten.

    A journal from an earlier release does not contain them. In this case, return those of all
    installed views.
    """
    names = journal.position(_POSITION)
    if names is not None:
        return set(json.decode(names, type=list[str]))
    found: set[str] = set()
    for view in offered("views"):
        with suppress(MissingExtension):
            found.update(load_views([view])[view].live)
    return found


class ViewDocuments:
    """Writes the documents of all views.

    Each page belongs to the closed Change List that it shows, and is kept, discarded and deleted
    along with that list.
    """

    def __init__(self, source: SourceContext, recorder: Recorder) -> None:
        self._folder = source.documents_folder
        self._recorder = recorder
        self._views = [
            kind(source.documents.uri, source.retention.age) for kind in source.views.values()
        ]
        self._begin = 0
        self._datetimes: list[int] = []
        self._entries: list[Chunks] = [[] for _ in self._views]
        self._closed: list[FinishedDocument] = []
        #: Pages whose heads are up to date: the names of the previous page, the page, and the next.
        self._linked: set[tuple[str | None, str | None, str | None]] = set()
        self._written: dict[str, Chunks] = {}
        #: Whether all documents show the current closed Change Lists. If not, call `link`.
        self.is_linked = False

    def prepare(self, journal: Journal) -> None:
        """Write missing pages, and remove documents that the options no longer offer."""
        wanted = {name for view in self._views for name in view.live}
        self._remember_documents(journal, wanted)
        remove(self._folder, _known_documents(journal) - wanted)
        self._closed = journal.finished(Capability.CHANGE_LIST)
        for number, document in enumerate(self._closed):
            pages = [view.name(document) for view in self._views]
            for view, page in zip(self._views, pages, strict=True):
                if not (self._folder / page).exists():
                    before = self._closed[:number]
                    self._restore(view, before)
                    entries = list(map(view.entry, changes_in(self._folder, document)))
                    head = view.head(page, None, None)
                    self._write_page(view, head, entries, document, before)
            files = (document.files[0], *pages)
            if files != document.files:
                self._recorder.run(self._files_update(document, files))
        for view in self._views:
            self._restore(view, self._closed)

    def _restore(self, view: View, closed: Sequence[FinishedDocument]) -> None:
        """Restore a view's state after the changes in some closed Change Lists."""
        if closed:
            view.resume(self._last_page(view, closed), closed[-1].end)

    def _last_page(self, view: View, closed: Sequence[FinishedDocument]) -> bytes:
        return (self._folder / view.name(closed[-1])).read_bytes() if closed else b""

    def _write_page(
        self,
        view: View,
        head: bytes,
        entries: Sequence[bytes],
        document: FinishedDocument,
        before: Sequence[FinishedDocument],
    ) -> int:
        remark = view.remark(self._last_page(view, before), entries, document.end)
        return self._write(view.name(document), [*view.page(head, entries), remark])

    def _remember_documents(self, journal: Journal, names: set[str]) -> None:
        """Add names to the journal, so that the files are found when their views are turned off.

        The names are never removed, since a view's package may be uninstalled at any time.
        """
        known = _known_documents(journal)
        if journal.position(_POSITION) is None or not names <= known:
            position = json.encode(sorted(known | names)).decode()
            self._recorder.run(lambda journal: journal.set_position(_POSITION, position))

    def _files_update(
        self, document: FinishedDocument, files: tuple[str, ...]
    ) -> Callable[[Journal], None]:
        """Return the operation that replaces the files of a document in the journal."""
        size = sum((self._folder / name).stat().st_size for name in files)

        def update_journal(journal: Journal) -> None:
            journal.discard(set(document.files).difference(files))
            journal.put(replace(document, files=files, size=size))

        return update_journal

    def follow(self, begin: int, changes: Iterable[Resource]) -> None:
        """Append the next changes, and drop those that the open Change List no longer contains."""
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
        """Write the pages of a Change List that is being closed. Return it with their files."""
        if not self._views:
            return document
        self.is_linked = False
        count = bisect_right(self._datetimes, document.end)
        files, size = list(document.files), document.size
        for view, entries in zip(self._views, self._entries, strict=True):
            before = view.name(self._closed[-1]) if self._closed else None
            page = view.name(document)
            head = view.head(page, before, None)
            size += self._write_page(view, head, entries[:count], document, self._closed)
            files.append(page)
        self._closed.append(document)  # until `link` reads the lists from the journal
        return replace(document, files=tuple(files), size=size)

    def publish(self) -> None:
        """Write the documents that show the open Change List, unless they are unchanged."""
        for view, entries in zip(self._views, self._entries, strict=True):
            documents = view.documents(self._closed, self._begin, entries)
            for name, chunks in documents.items():
                if self._written.get(name) != chunks:
                    self._write(name, chunks)
                    self._written[name] = chunks
            if not documents:
                remove(self._folder, view.live)

    def link(self, journal: Journal) -> None:
        """Link the pages to each other after Change Lists were closed or dropped, then publish."""
        if not self._views:
            return
        self.is_linked = False  # in case of an error below
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
