"""The journal: the changes of the Source in order, durable before they are published.

One SQLite file in WAL mode with `synchronous=FULL`, used by any number of processes. Every
datetime is assigned inside a write transaction, of which SQLite allows one at a time, so datetimes
increase strictly across threads, processes and jumps of the clock. Instants are counts of
microseconds since 1970 here.

A change is *closed* once it is in a closed Change List, and *pruned* once it is closed and every
hub has it, or its list was dropped from the archive. `pruned` is where the journal begins; the open
Change List begins where the last closed one ends.

The journal also has the finished documents. One is never written again. It is offered live or in an
archive until the retention policy drops it. Its files then stay for a while (`Options.linger`), for
clients that have just read their URLs.

And it has the notices of the Source's own documents. A notice is entered in the transaction in
which its document counts as written, so that a crash loses neither. Notices have strictly
increasing datetimes, as changes have, but of their own. They are kept up to a bound: a hub that was
away for longer has a gap, and Destinations then read the documents themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat

from msgspec import Struct, json
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.digest import SetSum
from rsnotify.format.model import INLINE_LIMIT, Capability, ChangeType, Resource
from rsnotify_publisher.changes import Record
from rsnotify_publisher.journal.current_set import CurrentSet, as_row, decode
from rsnotify_publisher.journal.database import JournalConnection, JournalState, RecordedChanges


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


_encode = json.Encoder().encode
_decode = json.Decoder(Resource).decode
#: How many notices are kept.
KEPT = 1_000


class NoticeLog(FinishedDocuments):
    """Reads and writes notices; writing belongs inside `transaction()`."""

    def add_notices(self, documents: Iterable[Resource]) -> None:
        """Enter that documents were written, and when; each has `change` and `capability`."""
        at = max(self.state().reached, self.last_notice())
        for document in documents:
            at = max(self._clock(), at + 1)
            self._db.execute("INSERT INTO notices VALUES (?, ?)", (at, _encode(document)))
        kept = "SELECT at FROM notices ORDER BY at DESC LIMIT 1 OFFSET ?"
        self._db.execute(f"DELETE FROM notices WHERE at < ({kept})", (KEPT,))

    def add_version_notice(self, document: Resource, version: str) -> None:
        """Enter that a document was written, unless there was a notice of this version.

        The document is given without `change`.
        """
        query = "SELECT version FROM versions WHERE document = ?"
        known = self._db.execute(query, (document.uri,)).fetchone()
        if known == (version,):
            return
        change = ChangeType.CREATED if known is None else ChangeType.UPDATED
        self.add_notices([replace(document, change=change)])
        self._db.execute("INSERT OR REPLACE INTO versions VALUES (?, ?)", (document.uri, version))

    def notices(self, after: int, limit: int = -1) -> list[Resource]:
        """Read the notices later than `after`, oldest first, at most `limit` if not negative."""
        query = "SELECT at, entry FROM notices WHERE at > ? ORDER BY at LIMIT ?"
        rows = self._db.execute(query, (max(after, self.first_notice()), limit))
        return [replace(_decode(entry), datetime=from_microseconds(at)) for at, entry in rows]

    def first_notice(self) -> int:
        """Return where notices begin: all notices are later."""
        return int(self._value("SELECT min(at) FROM notices"))

    def last_notice(self) -> int:
        """Return the datetime of the last notice; where notices begin, if there is none."""
        return int(self._value("SELECT max(at) FROM notices"))

    def last_notice_at(self, instant: int) -> int:
        """Return the datetime of the last notice at or before an instant, as `last_notice`."""
        at: int | None = self._value("SELECT max(at) FROM notices WHERE at <= ?", instant)
        return self.first_notice() if at is None else at

    def add_notice_hub(self, hub: str) -> None:
        """Add a hub; if it is new, its first notice is the next one."""
        query = "INSERT OR IGNORE INTO told SELECT ?, max(at) FROM notices"
        self._db.execute(query, (hub,))

    def notice_cursor(self, hub: str) -> int:
        """Return through which instant a hub is known to have every notice."""
        return int(self._value("SELECT through FROM told WHERE hub = ?", hub))

    def move_notice_cursor(self, hub: str, through: int) -> None:
        self._db.execute("UPDATE told SET through = ? WHERE hub = ?", (through, hub))


class Journal(NoticeLog, CurrentSet):
    """Reads and writes the journal.

    A method that says "within a transaction" belongs inside `transaction()`, where the writes of
    several methods become durable together.
    """

    def record(self, records: Iterable[Record], earliest: Iterable[int] = ()) -> list[Resource]:
        """Enter changes, and return them with their datetimes; within a transaction.

        A change is dated by the clock, or by its instant in `earliest` if that is later.
        """
        state = self.state()
        at = state.reached
        now = self._clock()
        rows = []
        recorded = []
        contents = {}
        for record, least in zip(records, chain(earliest, repeat(0)), strict=False):
            at = max(now, at + 1, least)
            resource, content = record.resource, record.content
            rows.append(as_row(record, at))
            recorded.append(replace(resource, datetime=from_microseconds(at)))
            if content is not None and len(content) <= INLINE_LIMIT:
                contents[resource.uri] = content
        if recorded:
            self._db.executemany(
                "INSERT INTO changes (uri, at, entry, validator) VALUES (?, ?, ?, ?)", rows
            )
            self.recorded.append(RecordedChanges(state.last_change, at, recorded, contents))
        return recorded

    def load(self, records: Iterable[Record]) -> int:
        """Enter an existing set of resources as the baseline, and count them; within a transaction.

        The journal then begins at this instant: no reader can go on from an earlier state. It must
        hold nothing yet.
        """
        if not self.is_empty():
            raise ConfigurationError(
                f"{self._path}: a baseline is loaded into an empty journal only; record changes"
            )
        at = max(self._clock(), self.state().reached + 1)
        total = SetSum()
        self.apply((as_row(record, at) for record in records), total)
        query = "UPDATE state SET applied = ?1, promised = ?1, pruned = ?1, closed = ?1"
        self._db.execute(f"{query}, sum = ?2", (at, str(total)))
        return total.count

    def track(self, wanted: bool) -> None:
        """Keep the current set in the journal, or leave it to the Source; within a transaction."""
        if wanted and not self.state().tracked:
            raise ConfigurationError(
                f"{self._path} keeps no resources, as the Source gave them by `resources`; "
                "give it again, or use another folder for the state"
            )
        if not wanted:
            self._db.execute("DELETE FROM resources")
            self._db.execute("DELETE FROM spellings")
            self._db.execute("UPDATE state SET tracked = FALSE, sum = NULL")

    def is_empty(self) -> bool:
        query = " OR ".join(f"EXISTS (SELECT 1 FROM {table})" for table in ("changes", "resources"))
        return self.is_unclosed() and not self._value(f"SELECT {query}")

    def is_unclosed(self) -> bool:
        """Whether it has no closed Change List: then it begins where it was made, or loaded."""
        return not self._value("SELECT EXISTS (SELECT 1 FROM volumes WHERE kind = 'changelist')")

    def promise(self) -> JournalState:
        """Promise that no later change gets a datetime up to now; within a transaction."""
        self._db.execute("UPDATE state SET promised = max(promised, ?)", (self._clock(),))
        return self.state()

    def position(self, reader: str) -> str | None:
        """Return the position that a reader of another log has stored; None if it has none."""
        query = "SELECT position FROM positions WHERE reader = ?"
        row = self._db.execute(query, (reader,)).fetchone()
        return None if row is None else str(row[0])

    def set_position(self, reader: str, position: str) -> None:
        """Store a position, together with the changes up to it; within a transaction."""
        self._db.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", (reader, position))

    def data_version(self) -> int:
        """Return a number that changes when another connection has written."""
        return int(self._value("PRAGMA data_version"))

    def changes(self, after: int, limit: int = -1) -> list[Resource]:
        """Return the changes later than `after`, oldest first, at most `limit` if not negative."""
        query = "SELECT uri, at, entry FROM changes WHERE at > ? ORDER BY at LIMIT ?"
        rows = self._db.execute(query, (after, limit))
        return [
            replace(decode(entry), uri=uri, datetime=from_microseconds(at))
            for uri, at, entry in rows
        ]

    def count_changes(self, after: int, limit: int = -1) -> int:
        """Count the changes later than `after`, up to `limit` if that is not negative."""
        query = "SELECT count(*) FROM (SELECT 1 FROM changes WHERE at > ? LIMIT ?)"
        return int(self._value(query, after, limit))

    def last_change_at(self, instant: int) -> int:
        """Return the datetime of the last change at or before an instant.

        If that change was pruned, this is the beginning of the journal.
        """
        at: int | None = self._value("SELECT max(at) FROM changes WHERE at <= ?", instant)
        return self.state().pruned if at is None else at

    def close_list(self, document: FinishedDocument) -> None:
        """Enter a closed Change List, which begins where the last one ends; in a transaction."""
        self.put(document)
        self._db.execute("UPDATE state SET closed = ?", (document.end,))

    def add_hub(self, hub: str) -> None:
        """Add a hub; if it is new, its first change is the next one; within a transaction."""
        row = (hub, self.state().last_change)
        self._db.execute("INSERT OR IGNORE INTO cursors VALUES (?, ?)", row)

    def cursor(self, hub: str) -> int:
        """Return through which instant a hub is known to have everything."""
        return int(self._value("SELECT through FROM cursors WHERE hub = ?", hub))

    def move_cursor(self, hub: str, through: int) -> None:
        self._db.execute("UPDATE cursors SET through = ? WHERE hub = ?", (through, hub))

    def prunable(self, hubs: Iterable[str], *, limit: int = 10_000) -> int | None:
        """Return through which change the journal may be pruned now; None if there is none.

        Changes that a hub lacks are kept as long as a Change List of the archive has them. The
        limit is on the number of changes, so that no other writer waits long.
        """
        closed = self.state().closed
        query = "SELECT coalesce(min(begins), ?) FROM volumes WHERE kind = ?"
        offered = self._value(query, closed, Capability.CHANGE_LIST)
        through = max(offered, min([closed, *map(self.cursor, hubs)]))
        query = "SELECT max(at) FROM (SELECT at FROM changes WHERE at <= ? ORDER BY at LIMIT ?)"
        at: int | None = self._value(query, through, limit)
        return at

    def prune(self, through: int) -> None:
        """Delete the changes through one that `prunable` returned; within a transaction."""
        while self.apply_changes(through):  # later, there would be nothing left to apply
            pass
        self._db.execute("DELETE FROM changes WHERE at <= ?", (through,))
        self._db.execute("UPDATE state SET pruned = ?", (through,))
