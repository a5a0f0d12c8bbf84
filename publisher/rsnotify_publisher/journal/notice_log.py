"""Notices of the Source's own documents: that a document was written, and when.

A notice is entered in the transaction in which its document counts as written, so that a crash
loses neither. Notices have strictly increasing datetimes, as changes have, but of their own. They
are kept up to a bound: a hub that was away for longer has a gap, and Destinations then read the
documents themselves.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import json
from msgspec.structs import replace

from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import ChangeType
from rsnotify_publisher.journal.finished_documents import FinishedDocuments

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
