"""What is true of a Source, and what its journal and its Change Lists must have."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.format.digest import SetSum
from rsnotify.format.model import Document, Resource
from rsnotify.format.reader import read_document
from rsnotify.format.vocabulary import ChangeType


class Wrong(AssertionError):
    """An invariant does not hold. It is noted here, as the code may catch the exception."""

    found: ClassVar[list[Wrong]] = []

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.found.append(self)


#: A datetime in µs, the URI, and the hash; None if the resource was deleted.
Recorded = tuple[int, str, str | None]
_connect = sqlite3.connect


class History:
    """All changes that a Source has committed, in order.

    Attributes:
        documented: Through which instant (µs) the Change Lists have everything.
        is_restored: Whether the Source was restored from a backup, so that what Destinations had
            from it may be gone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.recorded: list[Recorded] = []
        self.documented = 0
        self.is_restored = False
        self._checked: object = None

    def add(self, at: int, uri: str, digest: str | None) -> None:
        if self.recorded and at <= self.recorded[-1][0]:
            raise Wrong(f"I2: the datetime of a change of {uri} is not later than the one before")
        self.recorded.append((at, uri, digest))

    def restored(self, count: int) -> None:
        """Note that only the first changes are left."""
        del self.recorded[count:]
        self.is_restored = True

    @property
    def last(self) -> int:
        return self.recorded[-1][0] if self.recorded else 0

    def latest(self, uri: str) -> str | None:
        return next((digest for _, each, digest in reversed(self.recorded) if each == uri), None)

    def set_at(self, instant: int) -> dict[str, str]:
        """Return the hash of each resource that existed at an instant."""
        found: dict[str, str] = {}
        for at, uri, digest in self.recorded:
            if at > instant:
                break
            _apply(found, uri, digest)
        return found

    def sets_since(self, instant: int) -> Iterator[dict[str, str]]:
        """Yield the set at an instant, and after each later change."""
        found = self.set_at(instant)
        yield found
        for at, uri, digest in self.recorded:
            if at > instant:
                _apply(found, uri, digest)
                yield found

    def acknowledged(self, change: Resource) -> None:
        """I1: what was acknowledged is in the journal, as another connection reads it."""
        assert change.datetime is not None
        at = to_microseconds(change.datetime)
        journal = _connect(self._folder / "journal.sqlite3")
        try:
            is_there = "pruned >= ?1 OR EXISTS (SELECT 1 FROM changes WHERE at = ?1)"
            query = f"SELECT {is_there}, applied, sum FROM state"
            is_there, applied, digest = journal.execute(query, (at,)).fetchone()
        finally:
            journal.close()
        if not is_there:
            raise Wrong(f"I1: {change.uri} was acknowledged, and the journal lacks the change")

        total = SetSum()
        total.add(self.set_at(applied).items())
        if digest != str(total):
            raise Wrong(f"I2: the digest in the journal is {digest}, not {total}")

    def check_open_list(self) -> None:
        """I2: the open Change List has each change since its beginning, through its last entry."""
        path = self._folder / "documents" / "changelist.xml"
        try:
            facts = path.stat()
        except FileNotFoundError:
            return
        key = facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns
        if key != self._checked:
            self._checked = key
            document = _read(path)
            self._check_list(document)
            last = document.resources[-1].datetime if document.resources else document.from_
            assert last is not None
            if to_microseconds(last) < self.documented and not self.is_restored:
                raise Wrong(f"I2: the open Change List goes back to {last}")
            self.documented = to_microseconds(last)

    def check_all_lists(self) -> None:
        """I2: all Change Lists together have each change since the oldest begins, without a gap."""
        documents = self._folder / "documents"
        archive = documents / "changelist-archive.xml"
        end: Instant | None = None
        if archive.exists():
            for entry in _read(archive).resources:
                name = entry.uri.rpartition("/")[2]
                end = self._check_list(_read(documents / "resourcesync" / name), after=end)
        self._check_list(_read(documents / "changelist.xml"), after=end, through=self.last)

    def _check_list(
        self, document: Document, after: Instant | None = None, through: int | None = None
    ) -> Instant | None:
        """Compare a list with what was recorded; return where it ends."""
        assert document.from_ is not None
        if after is not None and document.from_ != after:
            raise Wrong(
                f"I2: a Change List begins at {document.from_}, the one before ends {after}"
            )
        listed = [
            (
                to_microseconds(each.datetime),
                each.uri,
                None if each.change is ChangeType.DELETED else each.hash,
            )
            for each in document.resources
            if each.datetime is not None
        ]
        begin = to_microseconds(document.from_)
        end = listed[-1][0] if listed else begin
        if document.until is not None:
            end = to_microseconds(document.until)
        end = end if through is None else through
        recorded = [each for each in self.recorded if begin < each[0] <= end]
        if listed != recorded:
            raise Wrong(f"I2: a Change List from {document.from_} has {listed}, not {recorded}")
        return document.until


def _apply(found: dict[str, str], uri: str, digest: str | None) -> None:
    if digest is None:
        found.pop(uri, None)
    else:
        found[uri] = digest


def _read(path: Path) -> Document:
    return read_document(path.read_bytes(), source=str(path))
