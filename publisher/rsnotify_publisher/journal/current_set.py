"""The current set of resources, as the changes have made it, and the sum over it.

A transaction that records changes does not update the set: in a large set, each change would read
and write a page of its own. The changes are applied later, and at the latest before they leave the
journal, many in one transaction that needs no flush: until it is on disk, the journal still has
them. Whatever reads the set first applies all changes that were recorded before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from msgspec import Struct, json
from msgspec.structs import replace

from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.digest import SetSum
from rsnotify.format.model import ChangeType, Resource
from rsnotify.format.uris import normalize
from rsnotify_publisher.changes import Record, as_listed
from rsnotify_publisher.journal.database import JournalConnection

encode = json.Encoder().encode
decode = json.Decoder(Resource).decode
# How many resources are read at once; no writer waits for the reader, and the WAL stays short.
_PAGE = 1_000
#: How many changes are applied in one transaction, for which other writers wait.
_APPLIED_AT_ONCE = 500
_FIND_ONE = "SELECT uri, entry FROM resources WHERE uri = ?"
_FIND = "SELECT uri, entry FROM resources WHERE uri IN (SELECT value FROM json_each(?))"
_FIND_SPELLINGS = (
    "SELECT normal, uri FROM spellings WHERE normal IN (SELECT value FROM json_each(?))"
)
_PUT = (
    "INSERT INTO resources VALUES (?1, ?2, ?3, ?4)"
    " ON CONFLICT (uri) DO UPDATE SET at = ?2, entry = ?3, validator = ?4"
)


#: A resource after a change: its URI, the datetime of the change (µs), its entry, its validator.
Row = tuple[str, int, bytes, str | None]


def as_row(record: Record, at: int) -> Row:
    """Return the row of a resource; the entry is short, since it is written with its whole page."""
    resource = record.resource
    return (resource.uri, at, encode(replace(resource, uri="")), record.validator)


class _Summary(Struct, gc=False):
    """The part of an entry that applying it needs; the rest is not decoded."""

    change: str | None = None
    hash: str | None = None


_summary_of = json.Decoder(_Summary).decode


def _is_deletion(row: Row) -> bool:
    return _summary_of(row[2]).change == ChangeType.DELETED


def _named(uri: str, entry: bytes) -> Resource:
    return replace(decode(entry), uri=uri)


class CurrentSet(JournalConnection):
    """Reads and writes the current set; writing belongs inside `transaction()`."""

    def apply_changes(self, through: int | None = None) -> bool:
        """Apply the next changes to the set; within a transaction.

        Return whether more are left, of those through an instant (µs) if one is given.
        """
        state = self.state()
        through = state.last_change if through is None else min(through, state.last_change)
        if state.sum is None or state.applied >= through:
            return False
        query = "SELECT uri, at, entry, validator FROM changes WHERE at > ? ORDER BY at LIMIT ?"
        rows = self._db.execute(query, (state.applied, _APPLIED_AT_ONCE)).fetchall()
        total = SetSum.parse(state.sum)
        self.apply(rows, total)
        applied = rows[-1][1]
        self._db.execute("UPDATE state SET applied = ?, sum = ?", (applied, str(total)))
        return bool(applied < through)

    def bring_up_to_date(self) -> None:
        """Apply all changes recorded so far to the set, within a transaction or outside.

        Raises:
            RuntimeError: This is a snapshot, which cannot write.
        """
        if self._is_snapshot:
            raise RuntimeError("a snapshot does not have the current set; read that outside of it")
        if self._db.in_transaction:
            while self.apply_changes():
                pass
            return
        state = self.state()
        more = state.sum is not None and state.applied < state.last_change
        while more:
            with self.transaction(flush=False):
                more = self.apply_changes(state.last_change)

    def apply(self, rows: Iterable[Row], total: SetSum) -> None:
        """Apply changes to the set in their order, and update its sum.

        A change in another spelling of its URI takes the place of the resource that is in the set.
        """
        remaining = iter(rows)
        while page := {normalize(row[0]): row for row in islice(remaining, _PAGE)}:
            uris = self._spellings(page)
            # If there is a single change, this query takes a quarter of the time.
            query = (_FIND_ONE, uris) if len(uris) == 1 else (_FIND, [encode(uris)])
            before = self._db.execute(*query).fetchall()
            total.remove((uri, _summary_of(entry).hash) for uri, entry in before)
            changed = [(row, _summary_of(row[2])) for row in page.values()]
            changed = [one for one in changed if one[1].change != ChangeType.DELETED]
            total.add((row[0], each.hash) for row, each in changed)
            after = {row[0]: row for row, _ in changed}
            gone = [(uri,) for uri, _ in before if uri not in after]
            self._db.executemany("DELETE FROM resources WHERE uri = ?", gone)
            self._db.executemany(_PUT, after.values())

    def _spellings(self, page: Mapping[str, Row]) -> list[str]:
        """Return all URIs that resources of changes may have in the set, and store the new ones.

        The changes are by the normal forms of their URIs.
        """
        uris = [row[0] for row in page.values()]
        spelled = [(normal, row[0]) for normal, row in page.items() if normal != row[0]]
        if not spelled and not self._value("SELECT EXISTS (SELECT 1 FROM spellings)"):
            return uris
        known = self._db.execute(_FIND_SPELLINGS, (encode([*page]),)).fetchall()
        self._db.executemany(
            "DELETE FROM spellings WHERE normal = ?", [(normal,) for normal, _ in known]
        )
        is_kept = ((one, uri) for one, uri in spelled if not _is_deletion(page[one]))
        self._db.executemany("INSERT INTO spellings VALUES (?, ?)", is_kept)
        return list({*uris, *(one for one, _ in spelled), *(uri for _, uri in known)})

    def revalidate(self, uri: str, validator: str) -> None:
        """Set the validator of a resource that did not change; within a transaction."""
        self.bring_up_to_date()
        self._db.execute("UPDATE resources SET validator = ? WHERE uri = ?", (validator, uri))

    def resources(self) -> Iterator[Resource]:
        """Stream the current set by URI, as a Resource List shows it.

        The set is read in pages and may change between them, so that no writer ever waits.
        """
        self.bring_up_to_date()
        after = ""
        query = "SELECT uri, at, entry FROM resources WHERE uri > ? ORDER BY uri LIMIT ?"
        while rows := self._db.execute(query, (after, _PAGE)).fetchall():
            for uri, at, entry in rows:
                yield as_listed(_named(uri, entry), from_microseconds(at))
            after = rows[-1][0]

    def count(self) -> int:
        self.bring_up_to_date()
        return int(self._value("SELECT count(*) FROM resources"))

    def resource(self, uri: str) -> tuple[Resource, str | None] | None:
        """Return a resource of the current set and its validator; None if it has none such."""
        self.bring_up_to_date()
        query = "SELECT entry, validator FROM resources WHERE uri = ?"
        row = self._db.execute(query, (uri,)).fetchone()
        return None if row is None else (_named(uri, row[0]), row[1])

    def select(
        self, accepts: Callable[[str, str | None], bool]
    ) -> Iterator[tuple[str, str | None]]:
        """Stream the URIs and validators that `accepts` returns True for, in order."""
        self.bring_up_to_date()
        after = ""
        query = "SELECT uri, validator FROM resources WHERE uri > ? ORDER BY uri LIMIT ?"
        while rows := self._db.execute(query, (after, _PAGE)).fetchall():
            yield from (row for row in rows if accepts(*row))
            after = rows[-1][0]

    def validators(self, prefix: str = "") -> dict[str, str | None]:
        """Return the validators of all resources whose URI begins with `prefix`."""
        self.bring_up_to_date()
        # U+10FFFF sorts behind every character that a URI can hold.
        query = "SELECT uri, validator FROM resources WHERE uri >= ? AND uri < ?"
        return dict(self._db.execute(query, (prefix, prefix + "\U0010ffff")))
