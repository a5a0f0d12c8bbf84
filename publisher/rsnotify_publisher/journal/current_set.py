"""The current set of resources, as the changes have made it, and the sum over it.

The sum is kept by differences, in the transaction of the change: whoever reads it reads it as of
the last change, whichever process made that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct, json
from msgspec.structs import replace

from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.digest import SetSum
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import ChangeType
from rsnotify_publisher.changes import Record, as_listed
from rsnotify_publisher.journal.storage import JournalConnection

encode = json.Encoder().encode
decode = json.Decoder(Resource).decode
# How many resources are read at once; no other writer waits for it, and the WAL stays short.
_PAGE = 1_000
_FIND_ONE = "SELECT uri, entry FROM resources WHERE uri = ?"
_FIND = "SELECT uri, entry FROM resources WHERE uri IN (SELECT value FROM json_each(?))"
_PUT = (
    "INSERT INTO resources VALUES (?1, ?2, ?3, ?4)"
    " ON CONFLICT (uri) DO UPDATE SET at = ?2, entry = ?3, validator = ?4"
)


class RecordedState(Struct, frozen=True, gc=False):
    """A resource as a change has left it.

    Args:
        at: The datetime of the change (µs).
        record: What was recorded.
    """

    at: int
    record: Record

    @property
    def is_there(self) -> bool:
        """Whether the set has it now."""
        return self.record.resource.change is not ChangeType.DELETED

    @property
    def row(self) -> tuple[object, ...]:
        """What stands in the table: a short row, as each is written with its whole page."""
        resource = self.record.resource
        return (resource.uri, self.at, encode(replace(resource, uri="")), self.record.validator)


class _Hashed(Struct):
    """All that the sum needs of an entry; the rest is not decoded."""

    hash: str | None = None


_hash_of = json.Decoder(_Hashed).decode


def _named(uri: str, entry: bytes) -> Resource:
    return replace(decode(entry), uri=uri)


class CurrentSet(JournalConnection):
    """What may be asked of the set, and entered; entering belongs inside `transaction()`."""

    def apply(self, entered: Iterable[RecordedState], total: str) -> str:
        """Bring the set to where changes have left it.

        Args:
            entered: Resources; of one that stands there several times the last counts.
            total: The sum over the set before.

        Returns:
            The sum over the set after.
        """
        running = SetSum.parse(total)
        going = iter(entered)
        while part := {one.record.resource.uri: one for one in islice(going, _PAGE)}:
            self._sum_up(running, part)
            self._enter(list(part.values()))
        return str(running)

    def _sum_up(self, running: SetSum, part: dict[str, RecordedState]) -> None:
        one = len(part) == 1  # as most batches are, and a quarter of the time
        before = self._db.execute(*((_FIND_ONE, list(part)) if one else (_FIND, [encode([*part])])))
        running.remove((uri, _hash_of(entry).hash) for uri, entry in before)
        running.add((uri, one.record.resource.hash) for uri, one in part.items() if one.is_there)

    def _enter(self, part: Sequence[RecordedState]) -> None:
        there = [one for one in part if one.is_there]
        self._db.executemany(_PUT, [one.row for one in there])
        if len(there) < len(part):
            gone = [(one.record.resource.uri,) for one in part if not one.is_there]
            self._db.executemany("DELETE FROM resources WHERE uri = ?", gone)

    def revalidate(self, uri: str, validator: str) -> None:
        """Note a new validator of a resource that did not change; within a transaction."""
        self._db.execute("UPDATE resources SET validator = ? WHERE uri = ?", (validator, uri))

    def resources(self) -> Iterator[Resource]:
        """Stream the current set by URI, as a Resource List shows it.

        It is read in pages, each as the set then is. So between pages the set may change, and
        nothing holds up the journal however long the caller takes.
        """
        after = ""
        query = "SELECT uri, at, entry FROM resources WHERE uri > ? ORDER BY uri LIMIT ?"
        while rows := self._db.execute(query, (after, _PAGE)).fetchall():
            for uri, at, entry in rows:
                yield as_listed(_named(uri, entry), from_microseconds(at))
            after = rows[-1][0]

    def count(self) -> int:
        """Return the number of resources."""
        number: int = self._db.execute("SELECT count(*) FROM resources").fetchone()[0]
        return number

    def resource(self, uri: str) -> tuple[Resource, str | None] | None:
        """Return a resource of the current set and its validator, if it is there."""
        query = "SELECT entry, validator FROM resources WHERE uri = ?"
        row = self._db.execute(query, (uri,)).fetchone()
        return None if row is None else (_named(uri, row[0]), row[1])

    def validators(self, prefix: str = "") -> dict[str, str | None]:
        """Return the validators of all resources whose URI begins with `prefix`."""
        # U+10FFFF sorts behind every character that a URI can hold.
        query = "SELECT uri, validator FROM resources WHERE uri >= ? AND uri < ?"
        return dict(self._db.execute(query, (prefix, prefix + "\U0010ffff")))
