"""What is true of a Source, and what its journal and its Change Lists must have."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.format.hashes import SetSum
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher.journal import Journal
from rsnotify_publisher.source_documents import OPEN_PART


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
        lost: The changes before each restore of the Source from a backup.
        early: The versions (URI, hash) that the Source served before it recorded them, or without
            recording them at all; and when it recorded the next change of the resource (µs), or
            None before that.
    """

    def __init__(self, folder: Path, base_url: str) -> None:
        self._folder = folder
        self._base_url = base_url
        self.recorded: list[Recorded] = []
        self.documented = 0
        self.lost: list[list[Recorded]] = []
        self.early: dict[tuple[str, str | None], int | None] = {}
        documents = folder / "documents"
        self._open_lists = str(documents / "changelist.xml"), str(documents / OPEN_PART)
        self._checked: object = None
        self._set: tuple[object, dict[str, str]] = (None, {})
        self._journal: sqlite3.Connection | None = None

    def add(self, at: int, uri: str, digest: str | None) -> None:
        if self.recorded and at <= self.recorded[-1][0]:
            raise Wrong(f"I2: the datetime of a change of {uri} is not later than the one before")
        self._append((at, uri, digest))

    def _append(self, change: Recorded) -> None:
        at, uri, _ = change
        self.recorded.append(change)
        for version, until in self.early.items():
            if version[0] == uri and until is None:
                self.early[version] = at

    def is_early(self, uri: str, digest: str | None, through: int) -> bool:
        """Return whether a version was served, and the resource not recorded again through T."""
        key = (uri, digest)
        until = self.early.get(key)
        return key in self.early and (until is None or through < until)

    def restored(self, count: int) -> None:
        self.close()
        self.lost.append(list(self.recorded))
        del self.recorded[count:]

    def power_was_cut(self) -> list[Recorded]:
        """I1: everything that was committed is still in the journal.

        Add what was not noted, and return it.
        """
        self.close()
        try:
            pruned, changes = self._read_journal()
        except (sqlite3.Error, RsnotifyError) as error:
            raise Wrong(
                f"I1: the power was cut, and the journal cannot be read: {error}"
            ) from error
        if changes is None:
            if self.recorded:
                raise Wrong("I1: the power was cut, and the journal is gone")
            return []
        kept = [each for each in self.recorded if each[0] > pruned]
        if changes[: len(kept)] != kept:
            raise Wrong(f"I1: the power was cut, and the journal has {changes}, not {kept}")
        added = changes[len(kept) :]
        for each in added:
            self._append(each)
        return added

    def _read_journal(self) -> tuple[int, list[Recorded] | None]:
        """Return through when changes were removed from the journal, and those that it has."""
        path = self._folder / "journal.sqlite3"
        if not path.exists() or not _has_tables(path):
            return 0, None
        with Journal(path, self._base_url) as journal:
            return journal.state().pruned, [recorded_change(each) for each in journal.changes(0)]

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    @property
    def last(self) -> int:
        return self.recorded[-1][0] if self.recorded else 0

    @property
    def version(self) -> object:
        """What differs after each change of what is known here."""
        return len(self.recorded), len(self.lost), len(self.early)

    @property
    def current_set(self) -> dict[str, str]:
        if self._set[0] != self.version:
            self._set = self.version, set_at(self.recorded, self.last)
        return self._set[1]

    def latest(self, uri: str) -> str | None:
        return next((digest for _, each, digest in reversed(self.recorded) if each == uri), None)

    def acknowledged(self, change: Resource) -> None:
        """I1: what was acknowledged is in the journal, as another connection reads it."""
        assert change.datetime is not None
        at = to_microseconds(change.datetime)
        if self._journal is None:
            self._journal = _connect(self._folder / "journal.sqlite3")
        is_there = "pruned >= ?1 OR EXISTS (SELECT 1 FROM changes WHERE at = ?1)"
        query = f"SELECT {is_there}, applied, sum FROM state"
        is_there, applied, digest = self._journal.execute(query, (at,)).fetchone()
        if not is_there:
            raise Wrong(f"I1: {change.uri} was acknowledged, and the journal lacks the change")

        total = SetSum()
        total.add(set_at(self.recorded, applied).items())
        if digest != str(total):
            raise Wrong(f"I2: the digest in the journal is {digest}, not {total}")

    def check_open_list(self) -> None:
        """I2: the open Change List has each change since its beginning, through its last entry."""
        key = [_version(path) for path in self._open_lists]
        if key[0] is not None and key != self._checked:
            self._checked = key
            paths = [Path(path) for path in self._open_lists]
            document = _read(paths[0])
            if document.index:
                end: Instant | None = None
                for entry in document.resources[:-1]:
                    end = self._check_list(self._listed(entry), after=end)
                document = _read(paths[1])
            self._check_list(document)
            last = document.resources[-1].datetime if document.resources else document.from_
            assert last is not None
            if to_microseconds(last) < self.documented and not self.lost:
                raise Wrong(f"I2: the open Change List goes back to {last}")
            self.documented = to_microseconds(last)

    def check_all_lists(self) -> None:
        """I2: all Change Lists together have each change since the oldest begins, without a gap."""
        documents = self._folder / "documents"
        archive = documents / "changelist-archive.xml"
        lists = list(self._lists(_read(archive))) if archive.exists() else []
        lists += self._lists(_read(documents / "changelist.xml"))
        *closed, last = {each.from_: each for each in lists}.values()
        end: Instant | None = None
        for each in closed:
            end = self._check_list(each, after=end)
        self._check_list(last, after=end, through=self.last)

    def _lists(self, document: Document) -> Iterator[Document]:
        """Yield a Change List, or those that an index or archive lists, at any depth."""
        if not document.index and document.capability == Capability.CHANGE_LIST:
            yield document
            return
        for entry in document.resources:
            yield from self._lists(self._listed(entry))

    def _listed(self, entry: Resource) -> Document:
        return _read(self._folder / "documents" / entry.uri.removeprefix(self._base_url))

    def _check_list(
        self, document: Document, after: Instant | None = None, through: int | None = None
    ) -> Instant | None:
        """Compare a list with what was recorded; return where it ends."""
        assert document.from_ is not None
        if after is not None and document.from_ != after:
            raise Wrong(
                f"I2: a Change List begins at {document.from_}, the one before ends {after}"
            )
        listed = [recorded_change(each) for each in document.resources]
        begin = to_microseconds(document.from_)
        end = listed[-1][0] if listed else begin
        if document.until is not None:
            end = to_microseconds(document.until)
        end = end if through is None else through
        recorded = [each for each in self.recorded if begin < each[0] <= end]
        if listed != recorded:
            raise Wrong(f"I2: a Change List from {document.from_} has {listed}, not {recorded}")
        return document.until


def recorded_change(change: Resource) -> Recorded:
    assert change.datetime is not None
    # A gateway knows no hashes.
    digest = None if change.change is ChangeType.DELETED else change.hash or f"{change.lastmod}"
    return to_microseconds(change.datetime), change.uri, digest


def _version(path: str) -> tuple[int, int, int] | None:
    """Return what differs whenever a file was replaced; None if there is none."""
    try:
        facts = os.stat(path)
    except FileNotFoundError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns


def _has_tables(path: Path) -> bool:
    """Return whether a journal was made as a whole; the power may have been cut before."""
    journal = _connect(path)
    try:
        return bool(journal.execute("PRAGMA user_version").fetchone()[0])
    finally:
        journal.close()


def set_at(recorded: Sequence[Recorded], instant: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for at, uri, digest in recorded:
        if at > instant:
            break
        _apply(found, uri, digest)
    return found


def sets_since(recorded: Sequence[Recorded], instant: int) -> Iterator[dict[str, str]]:
    """Yield the set at an instant, and after each later change."""
    found = set_at(recorded, instant)
    yield found
    for at, uri, digest in recorded:
        if at > instant:
            _apply(found, uri, digest)
            yield found


def _apply(found: dict[str, str], uri: str, digest: str | None) -> None:
    if digest is None:
        found.pop(uri, None)
    else:
        found[uri] = digest


def _read(path: Path) -> Document:
    return read_document(path.read_bytes(), source=str(path))
