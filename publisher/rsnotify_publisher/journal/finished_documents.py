"""The catalogue: which finished documents there are, and which files wait to be removed.

A finished document is never written again. It is offered live or in an archive, until the
policy drops it; its files then linger for those that have just read where they are.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, json

from rsnotify_publisher.journal.storage import JournalConnection


class FinishedDocument(Struct, frozen=True):
    """A finished document with all that belongs to it, such as its parts or packages.

    Args:
        kind: Its capability.
        begin: Its `from` or `at`.
        end: Its `until` or `completed`.
        entries: Changes or resources in it.
        size: Bytes of all its files.
        files: Their names below the base URL; the first is the document itself.
        archived: Whether it stands in the archive of its kind, not in what is offered live.
    """

    kind: str
    begin: int
    end: int
    entries: int
    size: int
    files: tuple[str, ...]
    archived: bool = False


class FinishedDocuments(JournalConnection):
    """What may be asked of the catalogue, and entered; entering belongs inside `transaction()`."""

    def finished(self, kind: str, *, archived: bool | None = None) -> list[FinishedDocument]:
        """Return the finished documents of a kind, oldest first.

        Args:
            kind: Their capability.
            archived: Only those in the archive, or only those that are not.
        """
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

    def put(self, volume: FinishedDocument) -> None:
        """Enter a document whose files are all there."""
        self._db.execute(
            "INSERT OR REPLACE INTO volumes VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                volume.kind,
                volume.begin,
                volume.end,
                volume.archived,
                volume.entries,
                volume.size,
                json.encode(volume.files).decode(),
            ),
        )
        self.removed(volume.files)  # one may be left from a crash, and linger

    def archive(self, volumes: Iterable[FinishedDocument]) -> None:
        """Move documents from what is live to the archive of their kind."""
        for volume in volumes:
            query = "UPDATE volumes SET archived = TRUE WHERE kind = ? AND begins = ?"
            self._db.execute(query, (volume.kind, volume.begin))

    def drop(self, volumes: Iterable[FinishedDocument]) -> None:
        """Take documents out; their files linger from now on."""
        for volume in volumes:
            query = "DELETE FROM volumes WHERE kind = ? AND begins = ?"
            self._db.execute(query, (volume.kind, volume.begin))
            self.discard(volume.files)

    def discard(self, files: Iterable[str]) -> None:
        """Let files linger from now on that no document refers to any more."""
        rows = [(name, self._clock()) for name in files]
        self._db.executemany("INSERT OR IGNORE INTO discarded VALUES (?, ?)", rows)

    def reclaim(self, stem: str) -> None:
        """Let no file linger whose name begins so: a crash left it, and it is written anew."""
        query = "DELETE FROM discarded WHERE substr(file, 1, length(?1)) = ?1"
        self._db.execute(query, (stem,))

    def discarded(self, before: int) -> list[str]:
        """Return the files that were discarded before an instant."""
        query = "SELECT file FROM discarded WHERE at < ? ORDER BY at"
        return [name for (name,) in self._db.execute(query, (before,))]

    def removed(self, files: Iterable[str]) -> None:
        """Note that discarded files are gone, or belong to a document again."""
        rows = [(name,) for name in files]
        self._db.executemany("DELETE FROM discarded WHERE file = ?", rows)

    def files(self) -> set[str]:
        """Return the names of all files that belong to a document, or linger."""
        known = {name for (name,) in self._db.execute("SELECT file FROM discarded")}
        for (files,) in self._db.execute("SELECT files FROM volumes"):
            known.update(json.decode(files))
        return known
