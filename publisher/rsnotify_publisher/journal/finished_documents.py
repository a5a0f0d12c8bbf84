"""Which finished documents there are, and which files are about to be deleted.

A finished document is never written again. It is offered live or in an archive until the
retention policy drops it. Its files then stay for a while (`Options.linger`), for clients that
have just read their URLs.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, json

from rsnotify_publisher.journal.storage import JournalConnection


class FinishedDocument(Struct, frozen=True):
    """A finished document with its parts or packages.

    Args:
        kind: Its capability.
        begin: Its `from` or `at`.
        end: Its `until` or `completed`.
        entries: Changes or resources in it.
        size: Bytes of all its files.
        files: Their names below the base URL; the first is the document itself.
        archived: Whether it is in the archive of its kind, not in the live document.
    """

    kind: str
    begin: int
    end: int
    entries: int
    size: int
    files: tuple[str, ...]
    archived: bool = False


class FinishedDocuments(JournalConnection):
    """Reads and writes the table of documents; writing belongs inside `transaction()`."""

    def finished(self, kind: str, *, archived: bool | None = None) -> list[FinishedDocument]:
        """Return the finished documents of a kind, oldest first; by default in both states."""
        rows = self._db.execute(
            "SELECT kind, begins, ends, entries, size, files, archived FROM volumes"
            " WHERE kind = ?1 AND (?2 IS NULL OR archived = ?2) ORDER BY begins",
            (kind, archived),
        )
        return [
            FinishedDocument(
                kind, begin, end, entries, size, tuple(json.decode(files)), bool(archived)
            )
            for kind, begin, end, entries, size, files, archived in rows
        ]

    def put(self, document: FinishedDocument) -> None:
        """Enter a document; all of its files have been written."""
        self._db.execute(
            "INSERT OR REPLACE INTO volumes VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                document.kind,
                document.begin,
                document.end,
                document.archived,
                document.entries,
                document.size,
                json.encode(document.files).decode(),
            ),
        )
        self.keep(document.files)  # a crash may have left one, which was discarded

    def archive(self, documents: Iterable[FinishedDocument]) -> None:
        for document in documents:
            query = "UPDATE volumes SET archived = TRUE WHERE kind = ? AND begins = ?"
            self._db.execute(query, (document.kind, document.begin))

    def drop(self, documents: Iterable[FinishedDocument]) -> None:
        for document in documents:
            query = "DELETE FROM volumes WHERE kind = ? AND begins = ?"
            self._db.execute(query, (document.kind, document.begin))
            self.discard(document.files)

    def discard(self, files: Iterable[str]) -> None:
        """Enter files that no document refers to any more; they are deleted later."""
        rows = [(name, self._clock()) for name in files]
        self._db.executemany("INSERT OR IGNORE INTO discarded VALUES (?, ?)", rows)

    def reclaim(self, stem: str) -> None:
        """Keep the files whose names begin with `stem`, since they will be written again."""
        query = "DELETE FROM discarded WHERE substr(file, 1, length(?1)) = ?1"
        self._db.execute(query, (stem,))

    def discarded(self, before: int) -> list[str]:
        query = "SELECT file FROM discarded WHERE at < ? ORDER BY at"
        return [name for (name,) in self._db.execute(query, (before,))]

    def keep(self, files: Iterable[str]) -> None:
        """Enter that files were deleted, or belong to a document again."""
        rows = [(name,) for name in files]
        self._db.executemany("DELETE FROM discarded WHERE file = ?", rows)

    def files(self) -> set[str]:
        """Return the names of all files that belong to a document, or were discarded."""
        known = {name for (name,) in self._db.execute("SELECT file FROM discarded")}
        for (files,) in self._db.execute("SELECT files FROM volumes"):
            known.update(json.decode(files))
        return known
