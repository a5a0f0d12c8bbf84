"""The journal: what happened at the Source, in order, durable before anyone is told.

One SQLite file in WAL mode with `synchronous=FULL`, used by any number of processes. Every
datetime is given inside a write transaction, of which SQLite admits one at a time, so they
increase strictly across threads, processes and jumps of the clock. Instants are counts of
microseconds since 1970 here.

Terms: a change is *closed* once it stands in a closed Change List, and *pruned* once it is
closed and every hub has it, or its list was dropped from the archive. `pruned` is where the
journal begins; the open Change List begins where the last closed one ends.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.digest import SetSum
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import Capability
from rsnotify_publisher.changes import Record
from rsnotify_publisher.journal.current_set import CurrentSet, RecordedState, decode, encode
from rsnotify_publisher.journal.finished_documents import FinishedDocument
from rsnotify_publisher.journal.notice_log import NoticeLog
from rsnotify_publisher.journal.storage import JournalState


class Journal(NoticeLog, CurrentSet):
    """What may be asked of the journal, and entered.

    A method that says "within a transaction" belongs inside `transaction()`, where what
    several of them write becomes durable together.
    """

    def record(self, records: Iterable[Record]) -> list[Resource]:
        """Enter changes, and bring the current set of resources along; within a transaction.

        Returns:
            The changes in their order, each with its datetime.
        """
        state = self.state()
        at = state.reached
        now = self._clock()
        entered = []
        recorded = []
        for item in records:
            at = max(now, at + 1)
            entered.append(RecordedState(at, item))
            recorded.append(replace(item.resource, datetime=from_microseconds(at)))
        if recorded:
            rows = [(one.at, encode(one.record.resource)) for one in entered]
            self._db.executemany("INSERT INTO changes VALUES (?, ?)", rows)
            # Where the set is not tracked, the Source itself knows it.
            total = None if state.sum is None else self.apply(entered, state.sum)
            self._db.execute("UPDATE state SET last_change = ?, sum = ?", (at, total))
        return recorded

    def load(self, records: Iterable[Record]) -> int:
        """Take an existing set of resources as the baseline; within a transaction.

        What was read from the journal before is no ground for what follows, so the journal
        begins anew, at this instant.

        Returns:
            The number of resources.

        Raises:
            ConfigurationError: The journal already holds something.
        """
        if not self.is_empty():
            raise ConfigurationError(
                f"{self._path}: a baseline is loaded into an empty journal only; record changes"
            )
        at = max(self._clock(), self.state().reached + 1)
        entered = (RecordedState(at, item) for item in records)
        total = self.apply(entered, str(SetSum()))
        query = "UPDATE state SET last_change = ?1, promised = ?1, pruned = ?1, closed = ?1"
        self._db.execute(f"{query}, sum = ?2", (at, total))
        return SetSum.parse(total).count

    def track(self, wanted: bool) -> None:
        """Keep the current set of resources, or leave it to the Source; within a transaction.

        Raises:
            ConfigurationError: The set was left to the Source before, and cannot be known.
        """
        if wanted and not self.state().tracked:
            raise ConfigurationError(
                f"{self._path} keeps no resources, as the Source gave them by `resources`; "
                "give it again, or use another folder for the state"
            )
        if not wanted:
            self._db.execute("DELETE FROM resources")
            self._db.execute("UPDATE state SET tracked = FALSE, sum = NULL")

    def is_empty(self) -> bool:
        """Whether nothing was ever loaded or recorded."""
        query = (
            "SELECT last_change = pruned AND NOT EXISTS (SELECT 1 FROM resources)"
            " AND NOT EXISTS (SELECT 1 FROM volumes WHERE kind = 'changelist') FROM state"
        )
        return bool(self._db.execute(query).fetchone()[0])

    def promise(self) -> JournalState:
        """Promise that no later change gets a datetime up to now; within a transaction."""
        self._db.execute("UPDATE state SET promised = max(promised, ?)", (self._clock(),))
        return self.state()

    def data_version(self) -> int:
        """Return a number that changes when another connection has written."""
        version: int = self._db.execute("PRAGMA data_version").fetchone()[0]
        return version

    def changes(self, after: int, limit: int = -1) -> list[Resource]:
        """Read the changes later than `after`, oldest first, at most `limit` if not negative."""
        rows = self._db.execute(
            "SELECT at, entry FROM changes WHERE at > ? ORDER BY at LIMIT ?", (after, limit)
        )
        return [replace(decode(entry), datetime=from_microseconds(at)) for at, entry in rows]

    def count_changes(self, after: int, limit: int = -1) -> int:
        """Count the changes later than `after`, up to `limit` if that is not negative."""
        query = "SELECT count(*) FROM (SELECT 1 FROM changes WHERE at > ? LIMIT ?)"
        count: int = self._db.execute(query, (after, limit)).fetchone()[0]
        return count

    def last_change_at(self, instant: int) -> int:
        """Return the datetime of the last change at or before an instant.

        The journal's beginning stands for all that is no longer in it.
        """
        query = "SELECT at FROM changes WHERE at <= ? ORDER BY at DESC LIMIT 1"
        row = self._db.execute(query, (instant,)).fetchone()
        return self.state().pruned if row is None else int(row[0])

    def close_list(self, volume: FinishedDocument) -> None:
        """Note a closed Change List, which begins where the last one ends; in a transaction."""
        self.put(volume)
        self._db.execute("UPDATE state SET closed = ?", (volume.end,))

    def add_hub(self, hub: str) -> None:
        """Let a hub that is new begin with the next change; within a transaction."""
        query = "INSERT OR IGNORE INTO cursors SELECT ?, last_change FROM state"
        self._db.execute(query, (hub,))

    def cursor(self, hub: str) -> int:
        """Return through which instant a hub is known to have everything."""
        query = "SELECT through FROM cursors WHERE hub = ?"
        through: int = self._db.execute(query, (hub,)).fetchone()[0]
        return through

    def move_cursor(self, hub: str, through: int) -> None:
        """Note that a hub has everything through an instant; within a transaction."""
        self._db.execute("UPDATE cursors SET through = ? WHERE hub = ?", (through, hub))

    def prunable(self, hubs: Iterable[str], *, limit: int = 10_000) -> int | None:
        """Return through which change the journal may be pruned now, if it may.

        What a hub lacks is kept for it as long as it stands in a Change List of the archive.

        Args:
            hubs: Those that are still fed.
            limit: How many changes at most, so that no other writer waits long.
        """
        closed = self.state().closed
        query = "SELECT coalesce(min(begins), ?) FROM volumes WHERE kind = ?"
        offered = self._db.execute(query, (closed, Capability.CHANGE_LIST)).fetchone()[0]
        through = max(offered, min([closed, *map(self.cursor, hubs)]))
        query = "SELECT max(at) FROM (SELECT at FROM changes WHERE at <= ? ORDER BY at LIMIT ?)"
        at: int | None = self._db.execute(query, (through, limit)).fetchone()[0]
        return at

    def prune(self, through: int) -> None:
        """Forget the changes through one that `prunable` named; within a transaction."""
        self._db.execute("DELETE FROM changes WHERE at <= ?", (through,))
        self._db.execute("UPDATE state SET pruned = ?", (through,))
