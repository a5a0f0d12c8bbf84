"""The journal: what happened at the Source, in order, durable before anyone is told.

One SQLite file in WAL mode with `synchronous=FULL`, used by any number of processes. Every
datetime is given inside a write transaction, of which SQLite admits one at a time, so they
increase strictly across threads, processes and jumps of the clock. Instants are counts of
microseconds since 1970 here.

Terms: a change is *closed* once it stands in a closed Change List, and *pruned* once it is
closed and every hub has it. `pruned` is where the journal begins; the open Change List begins
where the last closed one ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct, json
from msgspec.structs import replace

from rsnotify.datetimes import from_microseconds
from rsnotify.errors import ConfigurationError
from rsnotify.model import Resource
from rsnotify.vocabulary import ChangeType
from rsnotify_publisher.changes import Record
from rsnotify_publisher.storage import State, Storage

_encode = json.Encoder().encode
_decode = json.Decoder(Resource).decode


class Span(Struct, frozen=True, order=True):
    """The interval of a closed Change List, `from_at` exclusive to `until_at` inclusive."""

    from_at: int
    until_at: int


class Journal(Storage):
    """What may be asked of the journal, and entered.

    A method that says "within a transaction" belongs inside `transaction()`, where what
    several of them write becomes durable together.
    """

    def record(self, records: Iterable[Record]) -> list[Resource]:
        """Enter changes, and bring the current set of resources along; within a transaction.

        Returns:
            The changes in their order, each with its datetime.
        """
        execute = self._db.execute
        at = self.state().reached
        now = self._clock()
        recorded = []
        for item in records:
            at = max(now, at + 1)
            resource = item.resource
            entry = _encode(resource)
            execute("INSERT INTO changes VALUES (?, ?)", (at, entry))
            if resource.change is ChangeType.DELETED:
                execute("DELETE FROM resources WHERE uri = ?", (resource.uri,))
            else:
                self._put(resource.uri, at, entry, item.validator)
            recorded.append(replace(resource, datetime=from_microseconds(at)))
        if recorded:
            execute("UPDATE state SET last_change = ?", (at,))
        return recorded

    def _put(self, uri: str, at: int, entry: bytes, validator: str | None) -> None:
        self._db.execute(
            "INSERT INTO resources VALUES (?1, ?2, ?3, ?4)"
            " ON CONFLICT (uri) DO UPDATE SET at = ?2, entry = ?3, validator = ?4",
            (uri, at, entry, validator),
        )

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
        count = 0
        for item in records:
            count += 1
            self._put(item.resource.uri, at, _encode(item.resource), item.validator)
        self._db.execute("UPDATE state SET last_change = ?1, promised = ?1, pruned = ?1", (at,))
        return count

    def is_empty(self) -> bool:
        """Whether nothing was ever loaded or recorded."""
        query = "SELECT last_change = pruned AND NOT EXISTS (SELECT 1 FROM resources) FROM state"
        return bool(self._db.execute(query).fetchone()[0])

    def promise(self) -> State:
        """Promise that no later change gets a datetime up to now; within a transaction."""
        self._db.execute("UPDATE state SET promised = max(promised, ?)", (self._clock(),))
        return self.state()

    def revalidate(self, uri: str, validator: str) -> None:
        """Note a new validator of a resource that did not change; within a transaction."""
        self._db.execute("UPDATE resources SET validator = ? WHERE uri = ?", (validator, uri))

    def data_version(self) -> int:
        """Return a number that changes when another connection has written."""
        version: int = self._db.execute("PRAGMA data_version").fetchone()[0]
        return version

    def changes(self, after: int, limit: int = -1) -> list[Resource]:
        """Read the changes later than `after`, oldest first, at most `limit` if not negative."""
        rows = self._db.execute(
            "SELECT at, entry FROM changes WHERE at > ? ORDER BY at LIMIT ?", (after, limit)
        )
        return [replace(_decode(entry), datetime=from_microseconds(at)) for at, entry in rows]

    def last_change_at(self, instant: int) -> int:
        """Return the datetime of the last change at or before an instant.

        The journal's beginning stands for all that is no longer in it.
        """
        query = "SELECT at FROM changes WHERE at <= ? ORDER BY at DESC LIMIT 1"
        row = self._db.execute(query, (instant,)).fetchone()
        return self.state().pruned if row is None else int(row[0])

    def resources(self) -> Iterator[Resource]:
        """Stream the current set by URI, as a Resource List shows it; within a snapshot."""
        for at, entry in self._db.execute("SELECT at, entry FROM resources ORDER BY uri"):
            resource = _decode(entry)
            lastmod = resource.lastmod or from_microseconds(at)
            yield replace(resource, change=None, lastmod=lastmod)

    def count(self) -> int:
        """Return the number of resources."""
        number: int = self._db.execute("SELECT count(*) FROM resources").fetchone()[0]
        return number

    def resource(self, uri: str) -> tuple[Resource, str | None] | None:
        """Return a resource of the current set and its validator, if it is there."""
        query = "SELECT entry, validator FROM resources WHERE uri = ?"
        row = self._db.execute(query, (uri,)).fetchone()
        return None if row is None else (_decode(row[0]), row[1])

    def validators(self, prefix: str = "") -> dict[str, str | None]:
        """Return the validators of all resources whose URI begins with `prefix`."""
        # U+10FFFF sorts behind every character that a URI can hold.
        query = "SELECT uri, validator FROM resources WHERE uri >= ? AND uri < ?"
        return dict(self._db.execute(query, (prefix, prefix + "\U0010ffff")))

    def closed_lists(self) -> list[Span]:
        """Return the closed Change Lists, oldest first."""
        query = "SELECT from_at, until_at FROM closed_lists ORDER BY until_at"
        return [Span(*row) for row in self._db.execute(query)]

    def closed_through(self) -> int:
        """Return where the open Change List begins."""
        query = "SELECT coalesce((SELECT max(until_at) FROM closed_lists), pruned) FROM state"
        boundary: int = self._db.execute(query).fetchone()[0]
        return boundary

    def close_list(self, span: Span, *, keep: int) -> list[Span]:
        """Note a closed Change List, and forget the oldest; within a transaction.

        Args:
            span: What the new one covers, from the end of the last one.
            keep: How many are kept.

        Returns:
            Those forgotten.
        """
        self._db.execute("INSERT INTO closed_lists VALUES (?, ?)", (span.until_at, span.from_at))
        forgotten = self.closed_lists()[:-keep]
        for old in forgotten:
            self._db.execute("DELETE FROM closed_lists WHERE until_at = ?", (old.until_at,))
        return forgotten

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

        Args:
            hubs: Those that are still fed.
            limit: How many changes at most, so that no other writer waits long.
        """
        through = min([self.closed_through(), *map(self.cursor, hubs)])
        query = "SELECT max(at) FROM (SELECT at FROM changes WHERE at <= ? ORDER BY at LIMIT ?)"
        at: int | None = self._db.execute(query, (through, limit)).fetchone()[0]
        return at

    def prune(self, through: int) -> None:
        """Forget the changes through one that `prunable` named; within a transaction."""
        self._db.execute("DELETE FROM changes WHERE at <= ?", (through,))
        self._db.execute("UPDATE state SET pruned = ?", (through,))
