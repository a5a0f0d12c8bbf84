"""The journal: the changes of the Source in order, durable before they are published.

One SQLite file in WAL mode with `synchronous=FULL`, used by any number of processes. Every
datetime is assigned inside a write transaction, of which SQLite allows one at a time, so datetimes
increase strictly across threads, processes and jumps of the clock. Instants are counts of
microseconds since 1970 here.

Terms: a change is *closed* once it is in a closed Change List, and *pruned* once it is
closed and every hub has it, or its list was dropped from the archive. `pruned` is where the
journal begins; the open Change List begins where the last closed one ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat

from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.digest import SetSum
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import INLINE_LIMIT, Capability
from rsnotify_publisher.changes import Record
from rsnotify_publisher.journal.current_set import CurrentSet, as_row, decode
from rsnotify_publisher.journal.finished_documents import FinishedDocument
from rsnotify_publisher.journal.notice_log import NoticeLog
from rsnotify_publisher.journal.recorded_changes import RecordedChanges
from rsnotify_publisher.journal.storage import JournalState


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
